"""`intaglio demo --quick` on the real model: it ends, and its numbers are those of what lies in its folder."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from intaglio.lineage.resolve import resolve_spec
from intaglio.planning import plan

pytestmark = [pytest.mark.real, pytest.mark.prove]


@pytest.fixture(scope="module")
def demo(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("demo") / "life"
    command = [sys.executable, "-m", "intaglio.cli.main", "demo", "--quick", "--json", "--out", str(folder)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return folder, json.loads(ran.stdout)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_it_keeps_its_time(demo: tuple[Path, dict[str, Any]]) -> None:
    assert sum(row["seconds"] for row in demo[1]["table"]) < 300


def test_right_answers_are_those_of_the_items(demo: tuple[Path, dict[str, Any]]) -> None:
    folder, told = demo
    for stage in ("before", "after"):
        items = lines(folder / stage / "eval" / "items.jsonl")
        right = [
            item["nats"].index(max(item["nats"])) == ["sarcastic", "serious"].index(*item["right"]) for item in items
        ]
        assert told["stages"][stage]["score"]["mean"] == pytest.approx(sum(right) / len(right))


def test_bits_and_pairs_are_those_of_the_logs(demo: tuple[Path, dict[str, Any]]) -> None:
    folder, told = demo
    *_, last = (line for line in lines(folder / "pretrain" / "run" / "log.jsonl") if "eval_loss" in line)
    assert told["stages"]["pretrain"]["bits_per_byte"] == last["eval_bits_per_byte"] < last["eval_loss"] / math.log(2)
    report = json.loads((folder / "prefer" / "run" / "report.json").read_text("utf-8"))
    better = [margin > 0 for margin in report["margins_after"]]
    assert told["stages"]["prefer"]["after"]["accuracy"] == pytest.approx(sum(better) / len(better))


def test_the_plan_is_the_planners(demo: tuple[Path, dict[str, Any]], smollm2_dir: Path) -> None:
    _, spec, _ = resolve_spec(str(smollm2_dir))
    job = {"job": "pretrain", "sequence": 2048, "micro_batch": 16, "device": "h100"}
    assert demo[1]["stages"]["plan"]["peak_bytes"] == plan(spec, {"dp": 8, "zero": 1}, **job).plan.peak_bytes  # type: ignore[arg-type]
