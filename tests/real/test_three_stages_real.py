"""`recipes/three-stages.yaml` as a user runs it on real data: about fifteen minutes on two cores; killed on the way.

`INTAGLIO_RUNS=FOLDER` keeps the runs there, and a report that is there is looked at instead of being made again.
"""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from recipe_runs import runs, start, trained

pytestmark = [pytest.mark.real, pytest.mark.prove]

__all__ = ["runs"]  # a fixture


@pytest.fixture(scope="module")
def report(runs: Path) -> dict[str, Any]:
    out = runs / "three-stages"
    if not (out / "report.json").exists():
        process = start("recipes/three-stages.yaml", f"out={out}")
        while not (out / "reward" / "log.jsonl").exists():
            assert process.poll() is None, "it ended before the reward stage"
            time.sleep(1)
        process.send_signal(signal.SIGKILL)
        process.wait()
    return trained("three-stages", out)


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
