"""Which directory holds the head of a reward or of values: found in each that does, and said of each that does not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from adapted_pairs import shake
from intaglio.adapters.attach import attach
from intaglio.adapters.peft_files import save_adapter
from intaglio.checkpoints.classifiers import save_classifier
from intaglio.checkpoints.load import load_directory
from intaglio.models.heads import SequenceClassifier, init_head
from intaglio.models.value import ActorCritic
from intaglio.specs import validate
from intaglio.specs.adapter import LoRASpec
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.data import read_data
from intaglio.training.recipe import Recipe
from intaglio.training.rl.scorers import load_scorer
from intaglio.training.tasks import task_of
from tiny_rollouts import policy
from toy_llms import save_toy, toy_tokenizer
from toy_models import user_error

IDS = torch.tensor([[5, 6, 7, 40, 41, 2]])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy, and two reward models of it: one of whole weights, one that is an adapter."""
    folder = tmp_path_factory.mktemp("heads")
    base = save_toy(folder / "policy", context=64)
    whole = SequenceClassifier(policy(3), 1)
    init_head(whole, 1)
    save_classifier(whole, folder / "reward", toy_tokenizer())
    adapted = adapted_scorer(base)
    save_adapter(adapted, folder / "adapter", base=str(base))
    plain = load_directory(base, "float32")
    attach(plain, LoRASpec(r=2))
    save_adapter(plain, folder / "policy-adapter", base=str(base))
    return folder


def adapted_scorer(base: Path) -> Any:
    """A reward model as a run of one with an adapter leaves it, not yet saved."""
    model = SequenceClassifier(load_directory(base, "float32"), 1)
    init_head(model, 2)
    attach(model, LoRASpec(r=2, lora_alpha=6))
    shake(model)
    return model


@torch.no_grad()
def test_whole_or_adapter_the_scores_are_those_that_were_learned(made: Path, tmp_path: Path) -> None:
    """The case "which file is the reward or value head": the head is in the directory, beside what reads the text."""
    adapted = adapted_scorer(made / "policy").eval()
    save_adapter(adapted, tmp_path / "adapter", base=str(made / "policy"))
    assert "score.weight" in load_file(made / "reward" / "model.safetensors")
    assert "base_model.model.score.weight" in load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    found, tokenizer = load_scorer(str(tmp_path / "adapter"), "float32", "cpu", "test")
    torch.testing.assert_close(found(IDS), adapted(IDS), atol=1e-5, rtol=1e-5)
    assert tokenizer.encode("the user") == toy_tokenizer().encode("the user")
    whole, _ = load_scorer(str(made / "reward"), "float32", "cpu", "test")
    expected = SequenceClassifier(policy(3), 1).eval()
    init_head(expected, 1)
    torch.testing.assert_close(whole(IDS), expected(IDS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["reward", "adapter"])
def test_a_critic_starts_from_either(made: Path, tmp_path: Path, kind: str) -> None:
    rows = tmp_path / "prompts.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"say {i}"}) + "\n" for i in range(4)), encoding="utf-8")
    start = str(made / kind)
    objective = {"kind": "ppo", "rewards": [{"model": start}], "max_completion_length": 4, "value_from": start}
    told = {"model": str(made / "policy"), "data": str(rows), "validation": 0, "steps": 1, "max_length": 32}
    recipe: Recipe = validate(Recipe, {**told, "precision": "float32", "objective": objective}, "test")
    tokenizer = Tokenizer.from_directory(made / "policy")
    model = task_of(recipe, read_data(recipe, tokenizer)).model(tokenizer)
    assert isinstance(model, ActorCritic)
    expected, _ = load_scorer(start, "float32", "cpu", "test")
    assert model.critic is not None
    with torch.no_grad():
        torch.testing.assert_close(model.critic(IDS), expected(IDS))


def test_what_holds_no_single_score_says_so(made: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "model").mkdir(parents=True)
    (run / "value").mkdir()
    (run / "recipe.yaml").write_text("model: m\n")
    save_classifier(SequenceClassifier(policy(), 2), tmp_path / "two", toy_tokenizer())
    for path, words in (
        (run, ["is the folder of a run", f"name {run}/value or {run}/model"]),
        (made / "policy", ["policy is no reward model", "objective reward"]),
        (made / "policy-adapter", ["policy-adapter is no reward model"]),
        (tmp_path / "two", ["two has 2 scores"]),
        (tmp_path / "nowhere", ["nowhere"]),
    ):
        with user_error(*words):
            load_scorer(str(path), "float32", "cpu", "rewards")
