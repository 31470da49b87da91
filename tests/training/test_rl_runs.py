"""Learning from rewards, from a recipe to a model: a bandit is solved, and a kill loses nothing."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from intaglio.checkpoints.classifiers import load_classifier
from intaglio.checkpoints.models import load_model
from intaglio.specs import validate
from intaglio.training.recipe import Recipe
from intaglio.training.run import resume, train

REWARD = '''
def letters(completions, prompts, **columns):
    """Which share of an answer are small letters."""
    return [sum(c.islower() and c.isascii() for c in text) / max(len(text), 1) for text in completions]
'''
BANDIT = {"max_completion_length": 2, "temperature": 1.0}
PPO = {"kind": "ppo", "kl_coef": 0.0, "num_ppo_epochs": 2, **BANDIT}
GRPO = {"kind": "grpo", "num_generations": 8, **BANDIT}


def quiet(line: str) -> None:
    """Says nothing."""


@pytest.fixture
def recipe(tmp_path: Path, toy_dir: Path) -> dict[str, Any]:
    """Prompts of all kinds for a tiny model, and a reward in a file."""
    (tmp_path / "reward.py").write_text(REWARD, encoding="utf-8")
    rows = [{"prompt": f"{chr(65 + i)} the user says {i}", "answer": i} for i in range(24)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {
        "model": str(toy_dir),
        "data": str(tmp_path / "prompts.jsonl"),
        "validation": 0.2,
        "max_length": 64,
        "micro_batch": 16,
        "accumulation": 2,
        "precision": "float32",
        "optimizer": {"learning_rate": 0.01, "weight_decay": 0},
        "schedule": {"kind": "constant"},
        "evaluate_every": 0,
        "save_every": 0,
        "threads": 1,
    }


def run_of(recipe: dict[str, Any], tmp_path: Path, objective: dict[str, Any], name: str = "run", **more: Any) -> Path:
    rewards = [{"function": f"{tmp_path / 'reward.py'}:letters"}]
    whole = {**recipe, "objective": {"rewards": rewards, **objective}, **more}
    train(validate(Recipe, whole, "recipe"), tmp_path / name, say=quiet, quiet=True)
    return tmp_path / name


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]


def rewards(run: Path) -> list[float]:
    return [line["reward"] for line in lines(run) if "reward" in line]


def test_grpo_solves_a_bandit(recipe: dict[str, Any], tmp_path: Path) -> None:
    run = run_of(recipe, tmp_path, GRPO, steps=20, evaluate_every=20)
    found, (first, *_) = rewards(run), lines(run)
    assert sum(found[:3]) / 3 < 0.3
    assert sum(found[-3:]) / 3 > 0.85
    assert {"entropy", "clip_ratio/region_mean", "frac_reward_zero_std", "completions/mean_length"} <= first.keys()
    assert {"rewards/letters/mean", "rewards/letters/std", "reward_std", "completions/clipped_ratio"} <= first.keys()
    assert first["clip_ratio/region_mean"] == first["clip_ratio/low_min"] == first["clip_ratio/high_max"] == 0
    assert first["sampling/sampling_logp_difference/max"] < 1e-4
    (exam,) = [line for line in lines(run) if "eval_reward" in line]
    assert exam["eval_reward"] == pytest.approx(-exam["eval_loss"])
    assert exam["eval_reward"] > 0.85
    load_model(run / "model")


@pytest.mark.parametrize("value", ["own", "shared"])
def test_ppo_solves_a_bandit(recipe: dict[str, Any], tmp_path: Path, value: str) -> None:
    run = run_of(recipe, tmp_path, {**PPO, "value": value}, steps=40)
    found, (first, *_) = rewards(run), lines(run)
    assert sum(found[:3]) / 3 < 0.3
    assert sum(found[-3:]) / 3 > 0.85
    assert first["policy/approxkl_avg"] == pytest.approx(0, abs=1e-10)
    assert first["policy/clipfrac_avg"] == first["val/clipfrac_avg"] == 0
    assert first["val/ratio"] == pytest.approx(1, abs=1e-6)
    assert first["val/ratio_var"] == pytest.approx(0, abs=1e-10)
    assert first["objective/kl"] == pytest.approx(0, abs=1e-5)
    assert first["loss/policy_avg"] == pytest.approx(0, abs=1e-5)  # whitened advantages have no mean
    critic = load_classifier(run / "value")
    assert critic.num_labels == 1
    load_model(run / "model")


def after_a_kill(run: Path, step: int, tmp_path: Path) -> Path:
    """The run as it stood when `step` had been saved and it was killed, gone on with."""
    killed = tmp_path / "killed"
    shutil.copytree(run, killed)
    for checkpoint in (killed / "checkpoints").iterdir():
        if checkpoint.name > f"step-{step:08d}":
            shutil.rmtree(checkpoint)
    resume(killed, say=quiet, quiet=True)
    return killed


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("ppo", {"kl_coef": 0.1, "kl_target": 1.0, "kl_horizon": 50, "num_mini_batches": 2, "target_kl": 0.02}),
        ("ppo", {"kl_coef": 0.1, "value": "shared", "ptx": True}),
        ("grpo", {"num_iterations": 2, "num_mini_batches": 2, "beta": 0.04}),
    ],
)
def test_a_killed_run_goes_on_as_if_nothing_had_been(
    recipe: dict[str, Any], tmp_path: Path, kind: str, more: dict[str, Any]
) -> None:
    if "ptx" in more:
        texts = [{"text": f"the user says {i} and the assistant says hello"} for i in range(9)]
        (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts), encoding="utf-8")
        more = {**more, "ptx": {"data": str(tmp_path / "texts.jsonl"), "max_length": 32}}
    objective = {**(PPO if kind == "ppo" else GRPO), **more}
    run = run_of(recipe, tmp_path, objective, steps=5, save_every=1, keep=10, micro_batch=8)
    killed = after_a_kill(run, 3, tmp_path)  # in the middle of a rollout
    ours, theirs = (load_file(one / "checkpoints/step-00000005/weights.safetensors") for one in (killed, run))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    timed = ("seconds", "per_second", "mfu", "peak_memory")
    told = [
        [{key: value for key, value in line.items() if not any(word in key for word in timed)} for line in lines(one)]
        for one in (killed, run)
    ]
    assert told[0] == told[1]
    if "kl_target" in more:
        weights = [line["objective/kl_coef"] for line in lines(run) if "objective/kl_coef" in line]
        assert len(set(weights)) == len(weights) > 1
    if "ptx" in more:
        assert all("loss/ptx_avg" in line for line in lines(run))


@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_an_adapter_learns_beside_frozen_weights(recipe: dict[str, Any], tmp_path: Path, kind: str) -> None:
    objective = {**PPO, "kl_coef": 0.01} if kind == "ppo" else {**GRPO, "beta": 0.01}
    run = run_of(recipe, tmp_path, objective, steps=2, adapter={"r": 4, "lora_alpha": 16})
    first = lines(run)[0]
    assert first["sampling/sampling_logp_difference/max"] < 1e-4
    assert first["objective/kl" if kind == "ppo" else "kl"] == pytest.approx(0, abs=1e-5)
    config = run / "adapter" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "lora_dropout": 0.5}), encoding="utf-8")
    again = run_of(recipe, tmp_path, objective, "again", steps=1, adapter={"from": str(run / "adapter")})
    first = lines(again)[0]
    assert first["objective/kl" if kind == "ppo" else "kl"] == pytest.approx(0, abs=1e-5)  # from where it began
    if kind == "ppo":
        assert first["val/ratio"] == pytest.approx(1, abs=1e-6)  # without dropout


def test_a_killed_run_is_held_to_the_adapter_that_it_began_with(recipe: dict[str, Any], tmp_path: Path) -> None:
    """Both adapters come back, whatever the folder that the first was read from holds by then."""
    objective = {**GRPO, "beta": 0.5}
    begun = run_of(recipe, tmp_path, objective, "begun", steps=1, adapter={"r": 4, "lora_alpha": 16})
    start = tmp_path / "start"
    shutil.copytree(begun / "adapter", start)
    more: dict[str, Any] = {"adapter": {"from": str(start)}, "save_every": 1, "keep": 10}
    run = run_of(recipe, tmp_path, objective, steps=4, **more)
    shutil.rmtree(start)
    shutil.copytree(run / "adapter", start)
    killed = after_a_kill(run, 2, tmp_path)
    ours, theirs = (load_file(one / "checkpoints/step-00000004/weights.safetensors") for one in (killed, run))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert [line["kl"] for line in lines(killed)] == [line["kl"] for line in lines(run)]
    assert lines(run)[-1]["kl"] > 1e-4
