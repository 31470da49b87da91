"""A recipe's rows, whatever its objective asks of them: texts for a tokenizer, and samples shown before a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from intaglio.errors import UserError
from intaglio.specs import validate
from intaglio.training.batching.data import texts_to_learn_from
from intaglio.training.objectives.specs import LanguageModelSpec
from intaglio.training.preview import preview
from intaglio.training.recipe import Recipe
from intaglio.training.start import build_tokenizer

LAYER = {
    "norm": {"kind": "rms_norm"},
    "attention": {"num_heads": 2, "rope": {}},
    "feed_forward": {"intermediate_size": 16, "activation": "silu", "gated": True},
}
ASKED = [{"role": "user", "content": "say what"}]
PAIRS: list[dict[str, Any]] = [
    {"prompt": "say ", "chosen": "yes", "rejected": "no"},
    {"prompt": "say ", "answers": ["best", "good", "worst"]},
]
JUDGED = [
    {"prompt": "say ", "completion": "yes", "label": True},
    {"prompt": "say ", "completion": "no", "label": False},
]
PROMPTS = [{"prompt": "say ", "answer": 4}, {"prompt": ASKED, "answer": 5}]
REWARDED = {"rewards": [{"function": "arithmetic"}], "max_completion_length": 4}
KINDS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], list[str], str]] = {
    "reward": ({"kind": "reward"}, PAIRS, ["say ", "yes", "no", "say ", "best", "good", "worst"], "; chosen "),
    "dpo": ({"kind": "dpo"}, PAIRS, ["say ", "yes", "no", "say ", "best", "good", "worst"], "; chosen "),
    "kto": ({"kind": "kto"}, JUDGED, ["say ", "yes", "say ", "no"], "; wanted"),
    "ppo": ({"kind": "ppo", **REWARDED}, PROMPTS, ["say ", "say what"], "; a prompt to be answered"),
    "grpo": ({"kind": "grpo", **REWARDED}, PROMPTS, ["say ", "say what"], "; a prompt to be answered"),
}


def recipe_of(kind: str, folder: Path, rows: list[dict[str, Any]]) -> Recipe:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    fields = {
        "architecture": {"hidden_size": 8, "max_position_embeddings": 32, "layers": [LAYER]},
        "tokenizer": {"vocab_size": 270, "special_tokens": ["<|im_start|>"]},
        "data": str(file),
        "max_length": 24,
        "micro_batch": 8,
        "steps": 1,
        "objective": KINDS[kind][0],
    }
    found: Recipe = validate(Recipe, fields, "test")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_learns_from_all_that_the_rows_say(kind: str, tmp_path: Path) -> None:
    _, rows, texts, _ = KINDS[kind]
    recipe = recipe_of(kind, tmp_path, rows)
    assert [*texts_to_learn_from(recipe)] == texts
    tokenizer = build_tokenizer(recipe)
    assert tokenizer.decode(tokenizer.encode("say yes")) == "say yes"
    assert len(tokenizer.encode("say ", add_special_tokens=False)) < 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_dry_run_shows_what_is_learned_from(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, rows, _, said = KINDS[kind]
    preview(recipe_of(kind, tmp_path, [row for row in rows if isinstance(row["prompt"], str)]))
    shown = capsys.readouterr().out
    assert said in shown
    assert "say " in shown
    assert "memory of a full micro-batch" in shown
    assert ("reference weights" in shown) == (kind in ("kto", "ppo"))  # a frozen copy, which the others do without
    assert ("critic weights" in shown) == (kind == "ppo")


def plain(folder: Path, *rows: dict[str, Any]) -> Recipe:
    return recipe_of("dpo", folder, [*rows]).updated(objective=LanguageModelSpec())


def test_a_tokenizer_of_a_language_model_learns_from_answers_and_chats_too(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "say it"}, {"role": "assistant", "content": "so be it"}]
    rows = ({"prompt": "one ", "completion": "two"}, {"messages": chat}, {"text": "alone"})
    assert [*texts_to_learn_from(plain(tmp_path, *rows))] == ["one ", "two", "say it", "so be it", "alone"]
    asked = {"prompt": chat[:1], "completion": chat[1:]}
    assert [*texts_to_learn_from(plain(tmp_path, asked))] == ["say it", "so be it"]
    with pytest.raises(UserError, match=r"rows.jsonl:1: token ids, of which no tokenizer can be learned"):
        [*texts_to_learn_from(plain(tmp_path, {"input_ids": [1, 2, 3]}))]


def test_rows_that_say_nothing_of_the_kind_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rows.jsonl:1"):
        [*texts_to_learn_from(recipe_of("dpo", tmp_path, [{"text": "alone"}]))]
