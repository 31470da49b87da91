"""Runs that train an adapter: what they leave, gone on with after a stop, gone on with from a directory."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from intaglio.adapters.peft_files import load_adapter
from intaglio.checkpoints.models import load_model
from intaglio.errors import UserError
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.preview import preview
from intaglio.training.recipe import load_recipe
from intaglio.training.run import Outcome, resume, train
from toy_llms import save_toy


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy(tmp_path_factory.mktemp("models") / "toy", context=128)


@pytest.fixture
def recipe(tmp_path: Path, toy: Path) -> Path:
    rows: list[dict[str, Any]] = [{"text": f"{'good' if i % 2 else 'bad'} day {i}"} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = {
        "model": str(toy),
        "adapter": {"r": 2, "lora_dropout": 0.1},
        "data": str(tmp_path / "rows.jsonl"),
        "validation": 0.2,
        "max_length": 48,
        "micro_batch": 2,
        "accumulation": 2,
        "steps": 6,
        "optimizer": {"learning_rate": 0.01, "loraplus_lr_ratio": 4},
        "evaluate_every": 3,
        "save_every": 3,
        "threads": 1,
        "neftune": 5.0,
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def quiet(line: str) -> None:
    """Says nothing."""


def run_to(recipe: Path, out: Path, *changes: str) -> Outcome:
    return train(load_recipe(recipe, list(changes)), out, say=quiet, quiet=True)


def tensors(outcome: Outcome) -> dict[str, torch.Tensor]:
    return load_file(outcome.result / "adapter_model.safetensors")


def test_a_run_leaves_a_peft_directory_and_its_base_alone(recipe: Path, tmp_path: Path, toy: Path) -> None:
    before = (toy / "model.safetensors").read_bytes()
    outcome = run_to(recipe, tmp_path / "run", "checkpointing=1")
    assert outcome.result == tmp_path / "run" / "adapter"
    assert not (tmp_path / "run" / "model").exists()
    assert (toy / "model.safetensors").read_bytes() == before
    config = json.loads((outcome.result / "adapter_config.json").read_text())
    assert (config["r"], config["base_model_name_or_path"]) == (2, str(toy))
    kept = Tokenizer.from_directory(outcome.result)
    assert kept.chat_templates == Tokenizer.from_directory(toy).chat_templates
    model = load_model(toy, dtype="bfloat16")
    load_adapter(model, outcome.result)
    saved = load_file(tmp_path / "run" / "checkpoints" / "step-00000006" / "weights.safetensors")
    found = dict(model.named_parameters())
    assert saved
    assert all(".lora_" in name and torch.equal(found[name], tensor) for name, tensor in saved.items())
    assert all(tensor.abs().sum() > 0 for name, tensor in saved.items())


@pytest.mark.parametrize(
    "changes",
    [
        ["optimizer.kind=paged_adamw", "quantization={}", "adapter.use_dora=true"],
        ["adapter.init_lora_weights=pissa", "adapter.modules_to_save=[lm_head]", "precision=float32"],
    ],
)
def test_gone_on_with_it_ends_where_it_would_have(recipe: Path, tmp_path: Path, changes: list[str]) -> None:
    whole = run_to(recipe, tmp_path / "whole", *changes)
    begun = run_to(recipe, tmp_path / "begun", *changes)
    last = begun.run / "checkpoints" / "step-00000006"
    for file in last.iterdir():
        file.unlink()
    last.rmdir()
    again = resume(begun.run, say=quiet, quiet=True)
    ours, theirs = tensors(again), tensors(whole)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert again.loss == whole.loss


def test_an_adapter_is_gone_on_with(recipe: Path, tmp_path: Path) -> None:
    first = run_to(recipe, tmp_path / "first", "steps=3")
    second = run_to(recipe, tmp_path / "second", f"adapter={{from: {first.result}}}", "optimizer.learning_rate=1e-9")
    changed, before = tensors(second), tensors(first)
    assert changed.keys() == before.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(changed[name], tensor, rtol=0, atol=1e-5)


def test_a_classifier_saves_its_head_with_the_adapter(recipe: Path, tmp_path: Path) -> None:
    rows = [{"text": f"{'good' if i % 2 else 'bad'} day {i}", "label": "yes" if i % 2 else "no"} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    outcome = run_to(recipe, tmp_path / "run", "objective={kind: classifier, lm_weight: 0}", "neftune=0")
    saved = tensors(outcome)
    heads = [name for name in saved if "score" in name]
    assert [saved[name].shape[0] for name in heads] == [2]
    assert sum("lora_B" in name for name in saved) == 14


def test_a_dry_run_counts_what_trains(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preview(load_recipe(recipe, ["quantization={}", "max_length=128"]))
    out = capsys.readouterr().out
    assert "adapters" in out
    assert re.search(r"weights +0", out)  # of a few bits
    assert "master weights" not in out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["adapter=null"], ["loraplus_lr_ratio", "adapter"]),
        (["adapter=null", "optimizer.loraplus_lr_ratio=1", "quantization={}"], ["quantization", "adapter"]),
        (["model=null", "architecture=llama", "tokenizer=x"], ["adapter", "model"]),
        (["optimizer.kind=muon"], ["loraplus_lr_ratio", "muon"]),
        (["compile=true", "quantization={}"], ["compile", "quantization"]),
        (["adapter.rr=3"], ["adapter.rr", "did you mean r"]),
        (["objective={kind: seq2seq}", "neftune=0", "over_long=drop"], ["adapter", "seq2seq"]),
    ],
)
def test_what_would_do_nothing_is_refused(recipe: Path, changes: list[str], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(recipe, changes)
    assert all(word in str(caught.value) for word in words), str(caught.value)
