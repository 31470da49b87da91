"""Whole processes of the verbs that must answer within a second: help, lineage, show, diff."""

import os
import statistics
import subprocess
import sys

from _timing import report, seconds

COMMANDS = (
    ["--help"],
    ["lineage"],
    ["lineage", "--json"],
    ["show", "gpt3-175b"],
    ["show", "deepseek-v3", "--json"],
    ["diff", "gpt2", "llama-7b"],
)


def main() -> None:
    for command in COMMANDS:
        line = [sys.executable, "-m", "intaglio.cli.main", *command]

        def run(line: list[str] = line) -> None:
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "COLUMNS": "120"})

        run()
        times = [seconds(run) for _ in range(5)]
        report("startup " + " ".join(command), seconds=round(statistics.median(times), 2))


if __name__ == "__main__":
    main()
