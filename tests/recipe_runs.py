"""Recipes run at full size as a user runs them, for the slow proofs.

`INTAGLIO_RUNS=FOLDER` keeps the runs there, and those that have ended are looked at instead of being made again.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs."""
    kept = os.environ.get("INTAGLIO_RUNS")
    return Path(kept) if kept else tmp_path_factory.mktemp("runs")


def start(*arguments: str | Path) -> "subprocess.Popen[bytes]":
    """`intaglio train` on all cores, which the tests' own environment keeps from it."""
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    line = [sys.executable, "-m", "intaglio.cli.main", "train", *map(str, arguments)]
    return subprocess.Popen(line, cwd=ROOT, env=environment)


def trained(recipe: str, run: Path, *changes: str) -> dict[str, Any]:
    """The report of a run that has ended."""
    if not (run / "report.json").exists():
        assert start(f"recipes/{recipe}.yaml", f"out={run}", *changes).wait() == 0
    report: dict[str, Any] = json.loads((run / "report.json").read_text(encoding="utf-8"))
    return report
