"""`recipes/three-stages.yaml` as a user runs it on real data: about fifteen minutes on two cores; killed on the way.

`INTAGLIO_RUNS=FOLDER` keeps the runs there, and a report that is there is looked at instead of being made again.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.real, pytest.mark.prove]

ROOT = Path(__file__).parents[2]


def start(out: Path) -> "subprocess.Popen[bytes]":
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    line = [sys.executable, "-m", "intaglio.cli.main", "train", "recipes/three-stages.yaml", f"out={out}"]
    return subprocess.Popen(line, cwd=ROOT, env=environment)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    kept = os.environ.get("INTAGLIO_RUNS")
    out = (Path(kept) if kept else tmp_path_factory.mktemp("runs")) / "three-stages"
    if not (out / "report.json").exists():
        process = start(out)
        while not (out / "reward" / "log.jsonl").exists():
            assert process.poll() is None, "it ended before the reward stage"
            time.sleep(1)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert start(out).wait() == 0
    found: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("stage", ["ppo", "dpo"])
def test_what_people_preferred_is_written_more_often(report: dict[str, Any], stage: str) -> None:
    """By the reward model, and by a judge that it knows nothing of: 95 % intervals over 300 prompts leave 0 out."""
    assert report["prompts"] == 300
    for judge in ("reward", "sober"):
        found = report["stages"][stage]["scores"][judge]
        assert found["gain"][1] > 0, (judge, found)
        assert found["win_rate"][1] > 0.5, (judge, found)


def test_the_reward_is_not_met_by_saying_the_same_again(report: dict[str, Any]) -> None:
    assert all(report["stages"][stage]["scores"]["varied"]["mean"][1] > 0.85 for stage in ("ppo", "dpo"))


def test_it_takes_a_quarter_of_an_hour(report: dict[str, Any]) -> None:
    assert sum(report["seconds"].values()) < 15 * 60, report["seconds"]
