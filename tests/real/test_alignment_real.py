"""The recipes of alignment as a user runs them on SmolLM2 and real pairs: about an hour and a half on two cores.

`INTAGLIO_RUNS=FOLDER` keeps the runs there, and those that have ended are looked at instead of being made again.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from intaglio.training.log import read_log, step_seconds

pytestmark = [pytest.mark.real, pytest.mark.prove]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = os.environ.get("INTAGLIO_RUNS")
    return Path(kept) if kept else tmp_path_factory.mktemp("runs")


def trained(name: str, runs: Path, *changes: str) -> dict[str, Any]:
    """The report of a run that has ended, within a quarter of an hour of steps."""
    run = runs / f"{name}-smollm2"
    if not (run / "report.json").exists():
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        line = [sys.executable, "-m", "intaglio.cli.main", "train", f"recipes/{name}-smollm2.yaml", f"out={run}"]
        subprocess.run([*line, *changes], cwd=ROOT, env=environment, check=True)
    assert sum(step_seconds(read_log(run / "log.jsonl"))) < 15 * 60
    report: dict[str, Any] = json.loads((run / "report.json").read_text(encoding="utf-8"))
    return report


@pytest.mark.parametrize("name", ["reward", "dpo", "orpo", "kto"])
def test_more_held_out_pairs_are_told_apart(runs: Path, name: str) -> None:
    pairs = trained(name, runs)["pairs"]
    assert pairs["rows"] == 450
    assert pairs["gain"]["low"] > 0, pairs


def test_ppo_is_liked_better_by_its_reward_model(runs: Path) -> None:
    """And says how far it went, how long its answers are, and what scores that it does not learn from say."""
    trained("reward", runs)
    report = trained("ppo", runs, f"objective.rewards=[{{model: {runs / 'reward-smollm2' / 'model'}}}]")["compare"]
    assert report["prompts"] == 400
    policy = report["stages"]["policy"]
    reward = next(name for name in policy["scores"] if name not in ("right_words", "nearer"))
    assert policy["scores"][reward]["gain"][1] > 0
    assert policy["divergence"][0] > 0
    assert policy["length"][0] > 0
    assert set(policy["scores"]) == {reward, "right_words", "nearer"}


def test_grpo_solves_more_sums(runs: Path) -> None:
    report = trained("grpo", runs)["compare"]
    assert report["prompts"] == 400
    assert report["stages"]["policy"]["scores"]["arithmetic"]["gain"][1] > 0


def test_what_is_harmful_is_refused_more_often_than_what_is_not(runs: Path) -> None:
    scores = trained("refusal", runs)["compare"]["stages"]["policy"]["scores"]
    assert scores["refused_unsafe"]["rows"] == 48
    assert scores["refused_harmless"]["rows"] == 47
    assert scores["refused_unsafe"]["gain"][1] > 0
    assert scores["refused_unsafe"]["mean"][1] > scores["refused_harmless"]["mean"][2]
