"""Runs of reward models, DPO, ORPO and KTO: what recipes refuse, what runs leave, and a stop that changes nothing."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from intaglio.adapters.attach import attach
from intaglio.adapters.peft_files import save_adapter
from intaglio.checkpoints.classifiers import load_classifier
from intaglio.checkpoints.models import load_model
from intaglio.data.examples import Counts
from intaglio.data.readers import Row
from intaglio.data.store import InMemory
from intaglio.errors import UserError
from intaglio.specs.adapter import LoRASpec
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.batching.preferences import (
    compares_chats,
    judged_examples,
    pair_examples,
    paired_examples,
    split_by_prompt,
)
from intaglio.training.preview import preview
from intaglio.training.recipe import Recipe, load_recipe
from intaglio.training.run import Outcome, resume, train
from toy_llms import save_toy

DPO = {"kind": "dpo"}


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy(tmp_path_factory.mktemp("models") / "toy", context=128)


@pytest.fixture(scope="module")
def begun(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter that has learned something."""
    model = load_model(str(toy), dtype="float32")
    attach(model, LoRASpec(r=2))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.05
    folder = tmp_path_factory.mktemp("adapters") / "begun"
    save_adapter(model, folder, base=str(toy))
    return folder


@pytest.fixture
def recipe(tmp_path: Path, toy: Path) -> Path:
    rows = [
        {
            "prompt": [{"role": "user", "content": f"say {i // 2}"}],
            "chosen": [{"role": "assistant", "content": "hello" + " there" * (i % 3)}],
            "rejected": [{"role": "assistant", "content": "no" * (1 + i % 4)}],
            "margin": 0.1 * (i % 3),
        }
        for i in range(40)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = {
        "model": str(toy),
        "data": str(tmp_path / "rows.jsonl"),
        "validation": 0.2,
        "max_length": 48,
        "micro_batch": 2,
        "accumulation": 2,
        "steps": 4,
        "optimizer": {"learning_rate": 0.005},
        "evaluate_every": 2,
        "save_every": 2,
        "threads": 1,
        "objective": DPO,
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def quiet(line: str) -> None:
    """Says nothing."""


def run_to(recipe: Path, out: Path, *changes: str) -> Outcome:
    return train(load_recipe(recipe, list(changes)), out, say=quiet, quiet=True)


def lines(outcome: Outcome) -> list[dict[str, Any]]:
    volatile = ("tokens_per_second", "mfu", "peak_memory_bytes")
    read = [json.loads(line) for line in (outcome.run / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in volatile} for line in read]


STAGES = {
    "dpo": ["objective.kind=dpo"],
    "dpo, copied": ["objective={kind: dpo, reference: copy, loss: ipo}"],
    "dpo, new adapter": ["objective.kind=dpo", "adapter.r=2"],
    "dpo, adapter that goes on": ["objective.kind=dpo"],
    "orpo": ["objective.kind=orpo"],
    "kto": ["objective.kind=kto"],
    "reward": ["objective.kind=reward"],
    "reward, adapter": ["objective.kind=reward", "adapter.r=2"],
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(
    stage: str, recipe: Path, begun: Path, tmp_path: Path
) -> None:
    changes = [*STAGES[stage], *([f"adapter.from={begun}"] if stage.endswith("goes on") else [])]
    changes += ["steps=2", "save_every=1"]
    whole = run_to(recipe, tmp_path / "whole", *changes)
    shutil.copytree(whole.run, tmp_path / "stopped")
    shutil.rmtree(tmp_path / "stopped" / "checkpoints" / "step-00000002")
    again = resume(tmp_path / "stopped", say=quiet, quiet=True)
    assert lines(again) == lines(whole)
    name = "adapter_model.safetensors" if (whole.run / "adapter").exists() else "model.safetensors"
    one, other = load_file(whole.result / name), load_file(again.result / name)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_the_first_loss_is_ln_2_and_logged_under_trl_s_names(recipe: Path, begun: Path, tmp_path: Path) -> None:
    for number, changes in enumerate(([], [f"adapter.from={begun}"], ["adapter.r=2"])):
        found = lines(run_to(recipe, tmp_path / f"run{number}", "precision=float32", *changes))
        assert found[0]["loss"] == pytest.approx(0.693147, abs=1e-6), changes
        assert {"rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins"} <= found[0].keys()
        held_out = next(line for line in found if "eval_loss" in line)
        assert {"eval_rewards/margins", "eval_logps/chosen", "eval_logits/chosen", "eval_entropy"} <= held_out.keys()
        assert found[-2]["rewards/margins"] > 0


def test_a_reward_model_opens_in_transformers_with_the_same_scores(recipe: Path, tmp_path: Path) -> None:
    """Case 17: its pad token ends no text, or the token before the EOS would be scored, whatever the padding."""
    outcome = run_to(recipe, tmp_path / "run", "objective.kind=reward", "objective.center=0.01", "precision=float32")
    ours = load_classifier(outcome.result)
    theirs: Any = AutoModelForSequenceClassification.from_pretrained(outcome.result).eval()
    pad, eos = theirs.config.pad_token_id, theirs.config.eos_token_id
    assert pad is not None
    assert pad not in (eos if isinstance(eos, list) else [eos])
    rows = [[5, 2, 6, 2], [7, 8, 2], [2], [9, 10, 11, 2, 2]]
    alone = [ours(torch.tensor([row]))[0, 0].item() for row in rows]
    assert len(set(alone)) == 4
    with torch.no_grad():
        for left in (False, True):
            padded = [[pad] * (9 - len(row)) + row if left else row + [pad] * (9 - len(row)) for row in rows]
            ids = torch.tensor(padded)
            scores = theirs(ids, attention_mask=(ids != pad).long()).logits[:, 0]
            assert scores.tolist() == pytest.approx(alone, rel=1e-4, abs=1e-5)


def test_pairs_of_one_prompt_are_on_one_side(toy: Path) -> None:
    tokenizer = Tokenizer.from_directory(toy)
    rows = [Row({"prompt": f"q{i % 12}", "answers": [f"best {i}", "middle", "worst"]}, f"f:{i}") for i in range(48)]
    examples = pair_examples(rows, tokenizer, Counts(), 64, "truncate")
    assert len(examples) == 3 * 48
    assert sum(e.weight for e in examples) == pytest.approx(48)
    sides = split_by_prompt(InMemory(examples), 0.3)
    prompts = [{bytes(side[i].prompt.tobytes()) for i in range(len(side))} for side in (sides.train, sides.validation)]  # type: ignore[attr-defined]
    assert prompts[0]
    assert prompts[1]
    assert not prompts[0] & prompts[1]


def test_kto_takes_pairs_apart(toy: Path) -> None:
    tokenizer = Tokenizer.from_directory(toy)
    pair = Row({"prompt": "q", "chosen": "yes", "rejected": "no"}, "f:1")
    single = Row({"prompt": "q", "completion": "yes", "label": True}, "f:2")
    found = judged_examples([pair, single], tokenizer, Counts(), 64, "truncate")
    assert [(one.where, one.desirable) for one in found] == [("f:1", True), ("f:1", False), ("f:2", True)]
    assert found[0].ids.tolist() == found[2].ids.tolist()
    assert not compares_chats([pair])


def test_judged_answers_to_one_prompt_make_the_pairs_they_came_from(toy: Path) -> None:
    tokenizer = Tokenizer.from_directory(toy)
    pair = Row({"prompt": "q", "chosen": "yes", "rejected": "no"}, "f:1")
    single = Row({"prompt": "q", "completion": "perhaps", "label": False}, "f:2")
    alone = Row({"prompt": "r", "completion": "yes", "label": True}, "f:3")
    judged = judged_examples([pair, single, alone], tokenizer, Counts(), 64, "truncate")
    made = paired_examples(InMemory(judged))
    expected = pair_examples([pair], tokenizer, Counts(), 64, "truncate")[0]
    assert len(made) == 2
    first: Any = made[0]
    assert (first.key, first.fork, first.where) == (expected.key, expected.fork, "f:1")


def test_kto_tells_its_held_out_pairs_apart_before_and_after(recipe: Path, tmp_path: Path) -> None:
    changes = ["objective.kind=kto", "precision=float32", "pairs.rows=4", "evaluate_every=0"]
    outcome = run_to(recipe, tmp_path / "run", *changes)
    report = json.loads((outcome.run / "report.json").read_text())
    assert report["pairs"]["rows"] == 4
    assert report["margins_before"] != report["margins_after"]


def test_a_comparison_at_the_end_stands_in_the_report(recipe: Path, tmp_path: Path) -> None:
    outcome = run_to(recipe, tmp_path / "run", "compare.rows=3", "sample_tokens=4", "steps=1", "validation=0.5")
    report = json.loads((outcome.run / "report.json").read_text())["compare"]
    assert report["prompts"] == 3
    assert len(report["stages"]["policy"]["length"]) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": {"kind": "kto"}, "micro_batch": 1}, "2 or more"),
        ({"objective": {"kind": "kto", "reference": "precomputed"}}, "take copy"),
        ({"objective": {**DPO, "label_smoothing": 0.1}}, "cdpo or robust"),
        ({"objective": {**DPO, "reference": "adapter_off"}}, "new adapter"),
        ({"adapter": {"r": 2, "lora_dropout": 0.1}}, "dropout: true"),
        ({"packing": "contiguous"}, "whole"),
        ({"neftune": 5.0}, "neftune means nothing"),
        ({"streaming": True}, "streaming means nothing"),
        ({"supervise": "all"}, "supervise means nothing"),
        ({"objective": {"kind": "reward"}, "sample_every": 2, "prompts": ["a"]}, "sample_every means nothing"),
    ],
)
def test_what_would_do_nothing_or_compare_wrongly_is_refused(changes: dict[str, Any], message: str) -> None:
    data: dict[str, Any] = {"model": "m", "data": "d", "steps": 1, "objective": DPO, "micro_batch": 2}
    Recipe(**data)
    with pytest.raises(ValueError, match=message):
        Recipe(**{**data, **changes})


def test_rows_of_another_kind_are_refused(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UserError, match=r"texts.jsonl:1"):
        run_to(recipe, tmp_path / "run", f"data={tmp_path / 'texts.jsonl'}")


def test_a_dry_run_shows_both_answers(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preview(load_recipe(recipe, []))
    shown = capsys.readouterr().out
    assert "; chosen " in shown
    assert "hello" in shown
    preview(load_recipe(recipe, ["objective.kind=kto"]))
    assert "; not wanted" in capsys.readouterr().out
