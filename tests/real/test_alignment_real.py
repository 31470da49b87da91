"""The recipes of alignment as a user runs them on SmolLM2 and real pairs: about an hour and a half on two cores.

`INTAGLIO_RUNS=FOLDER` keeps the runs there, and those that have ended are looked at instead of being made again.
"""

from pathlib import Path
from typing import Any

import pytest

from intaglio.training.log import read_log, step_seconds
from recipe_runs import runs, trained

pytestmark = [pytest.mark.real, pytest.mark.prove]

__all__ = ["runs"]  # a fixture


def aligned(name: str, runs: Path, *changes: str) -> dict[str, Any]:
    """The report of a run that has ended, within a quarter of an hour of steps."""
    run = runs / f"{name}-smollm2"
    report = trained(f"{name}-smollm2", run, *changes)
    assert sum(step_seconds(read_log(run / "log.jsonl"))) < 15 * 60
    return report


@pytest.mark.parametrize(("name", "rows"), [("reward", 450), ("dpo", 750), ("orpo", 750), ("kto", 750)])
def test_more_held_out_pairs_are_told_apart(runs: Path, name: str, rows: int) -> None:
    pairs = aligned(name, runs)["pairs"]
    assert pairs["rows"] == rows
    assert pairs["gain"]["low"] > 0, pairs


def test_ppo_is_liked_better_by_its_reward_model(runs: Path) -> None:
    """And says how far it went, how long its answers are, and what scores that it does not learn from say."""
    aligned("reward", runs)
    report = aligned("ppo", runs, f"objective.rewards=[{{model: {runs / 'reward-smollm2' / 'model'}}}]")["compare"]
    assert report["prompts"] == 400
    policy = report["stages"]["policy"]
    reward = next(name for name in policy["scores"] if name not in ("right_words", "nearer"))
    assert policy["scores"][reward]["gain"][1] > 0
    assert policy["divergence"][0] > 0
    assert policy["length"][0] > 0
    assert set(policy["scores"]) == {reward, "right_words", "nearer"}


def test_grpo_solves_more_sums(runs: Path) -> None:
    report = aligned("grpo", runs)["compare"]
    assert report["prompts"] == 400
    assert report["stages"]["policy"]["scores"]["arithmetic"]["gain"][1] > 0


def test_what_is_harmful_is_refused_more_often_than_what_is_not(runs: Path) -> None:
    scores = aligned("refusal", runs)["compare"]["stages"]["policy"]["scores"]
    assert scores["refused_unsafe"]["rows"] == 48
    assert scores["refused_harmless"]["rows"] == 47
    assert scores["refused_unsafe"]["gain"][1] > 0
    assert scores["refused_unsafe"]["mean"][1] > scores["refused_harmless"]["mean"][2]
