"""A file of stages: what is shared, what a stage makes of another, and every refusal by stage and key."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from intaglio.training.objectives.rl_specs import PPOSpec
from intaglio.training.recipe import AdapterFrom
from intaglio.training.stages.plan import has_stages, load_stages
from toy_models import user_error

BASE: dict[str, Any] = {
    "max_length": 32,
    "optimizer": {"learning_rate": 0.1},
    "stages": {
        "sft": {"model": "base", "data": "told.jsonl", "steps": 5},
        "reward": {"model": {"stage": "sft"}, "objective": {"kind": "reward"}, "data": "pairs.jsonl", "steps": 2},
        "ppo": {
            "model": {"stage": "sft"},
            "objective": {"kind": "ppo", "rewards": [{"model": {"stage": "reward"}}], "max_completion_length": 8},
            "data": "asked.jsonl",
            "steps": 8,
            "optimizer": {"kind": "muon"},
        },
    },
    "report": {"prompts": "asked.jsonl", "baseline": "sft", "reward": "reward"},
}


def written(folder: Path, **stages: Any) -> Path:
    path = folder / "stages.yaml"
    path.write_text(yaml.safe_dump({**BASE, "stages": {**BASE["stages"], **stages}}, sort_keys=False))
    return path


def test_shared_keys_stand_in_every_stage_and_own_ones_take_their_place_whole(tmp_path: Path) -> None:
    recipes = load_stages(written(tmp_path), []).recipes(tmp_path / "out")
    assert [*recipes] == ["sft", "reward", "ppo"]
    assert {recipe.max_length for recipe in recipes.values()} == {32}
    assert recipes["sft"].optimizer.learning_rate == 0.1
    assert recipes["ppo"].optimizer.kind == "muon"
    assert recipes["ppo"].optimizer.learning_rate != 0.1


def test_what_a_stage_makes_is_named_anywhere_in_a_recipe(tmp_path: Path) -> None:
    recipes = load_stages(written(tmp_path), []).recipes(tmp_path / "out")
    assert recipes["ppo"].model == str(tmp_path / "out" / "sft" / "model")
    objective = recipes["ppo"].objective
    assert isinstance(objective, PPOSpec)
    assert objective.rewards[0].model == str(tmp_path / "out" / "reward" / "model")


def test_an_adapter_is_named_where_one_was_trained(tmp_path: Path) -> None:
    more = {"model": "base", "adapter": {"from": {"stage": "lora"}}, "data": "told.jsonl", "steps": 1}
    path = written(tmp_path, lora={"model": "base", "adapter": {"r": 2}, "data": "told.jsonl", "steps": 1}, more=more)
    recipe = load_stages(path, []).recipes(tmp_path / "out")["more"]
    assert recipe.adapter == AdapterFrom(path=str(tmp_path / "out" / "lora" / "adapter"))


def test_changes_are_of_a_stage_of_the_report_or_shared(tmp_path: Path) -> None:
    changes = ["ppo.steps=3", "ppo.objective.kl_coef=1e-2", "report.rows=9", "max_length=16", "sft.max_length=24"]
    stages = load_stages(written(tmp_path), changes)
    recipes = stages.recipes(tmp_path)
    objective, report = recipes["ppo"].objective, stages.report
    assert isinstance(objective, PPOSpec)
    assert report is not None
    assert (recipes["ppo"].steps, objective.kl_coef, report.rows) == (3, 0.01, 9)
    assert [recipe.max_length for recipe in recipes.values()] == [24, 16, 16]


def test_what_is_written_is_read_as_the_same(tmp_path: Path) -> None:
    stages = load_stages(written(tmp_path), ["ppo.steps=3"])
    stages.save(tmp_path / "again.yaml")
    again = load_stages(tmp_path / "again.yaml", [])
    assert again.recipes(tmp_path) == stages.recipes(tmp_path)
    assert again.report == stages.report


def test_one_recipe_holds_no_stages(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("model: base\n")
    assert has_stages(written(tmp_path))
    assert not has_stages(tmp_path / "one.yaml")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ppo.stepz=3", ["stages.yaml: ppo", "stepz", "steps"]),
        ("ppo.objective.kl_coeff=3", ["stages.yaml: ppo", "kl_coeff", "kl_coef"]),
        ("pppo.steps=3", ["stages.yaml", "pppo", "ppo"]),
        ("max_lenght=3", ["stages.yaml", "max_lenght", "max_length"]),
        ("report.promts=x", ["report", "promts", "prompts"]),
        ("report.baseline=sftt", ["report", "baseline", "sftt", "sft"]),
        ("report.reward=rewards", ["report", "reward:", "rewards"]),
        ("report.scores=[{pattern: a, weight: 2}]", ["report", "weight"]),
        ("reward.model={stage: ppo}", ["stages.yaml: reward", "'ppo'", "before"]),
        ("sft.model={stage: nobody}", ["stages.yaml: sft", "nobody"]),
        ("sft.adapter={r: 2}", ["stages.yaml: reward", "sft", "adapter: {from: {stage: sft}}"]),
        ("stages.data={model: base}", ["'data'", "no name for a stage"]),
        ("stages.Big={model: base}", ["'Big'", "no name for a stage"]),
        ("stages.ppo=3", ["stages.yaml: ppo", "mapping"]),
        ("stages={}", ["no stages"]),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: str, words: list[str]) -> None:
    with user_error(*words):
        load_stages(written(tmp_path), [change])
