"""Tasks put to a model while it trains: its scores stand in the log, and training is what it would be without."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from intaglio.errors import UserError
from intaglio.evaluation.learning_curves import learning_curves
from intaglio.training.log import read_log
from intaglio.training.recipe import load_recipe
from intaglio.training.run import resume, train
from running import unmeasured

LAYER = {
    "norm": {"kind": "rms_norm"},
    "attention": {"num_heads": 2, "rope": {}},
    "feed_forward": {"intermediate_size": 32, "activation": "silu", "gated": True},
}
COLOURS = {"sea": "blue", "blood": "red", "grass": "green", "snow": "white"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    unmeasured(monkeypatch)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A tiny model learns the colours of things; what is asked is which."""
    asked = {thing: f"Question: colour of {thing}?\nAnswer:" for thing in COLOURS}
    rows = [{"text": f"{asked[thing]} {COLOURS[thing]}"} for _ in range(40) for thing in COLOURS]
    write(tmp_path / "rows.jsonl", rows)
    choices = [*COLOURS.values()]
    tasks = [{"question": f"colour of {thing}?", "choices": choices, "answer": COLOURS[thing]} for thing in COLOURS]
    write(tmp_path / "colours.jsonl", [*tasks, {"question": "bad"}])
    write(tmp_path / "words.jsonl", [{"question": f"colour of {one}?", "answer": COLOURS[one]} for one in COLOURS])
    data = {
        "architecture": {"hidden_size": 32, "max_position_embeddings": 64, "layers": [LAYER]},
        "tokenizer": {"vocab_size": 300},
        "data": str(tmp_path / "rows.jsonl"),
        "validation": 0,
        "max_length": 48,
        "packing": "none",
        "micro_batch": 8,
        "steps": 70,
        "precision": "float32",
        "optimizer": {"learning_rate": 0.02},
        "evaluate_every": 0,
        "save_every": 2,
        "threads": 1,
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(data))
    return tmp_path / "recipe.yaml"


def unheard(line: str) -> None:
    """Says nothing."""


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def changes(recipe: Path, **more: object) -> list[str]:
    names = f"{recipe.parent / 'colours.jsonl'},{recipe.parent / 'words.jsonl'}"
    return [f"tasks.{key}={value}" for key, value in {"names": names, "every": 20, "max_tokens": 4, **more}.items()]


def test_training_is_not_disturbed(recipe: Path, tmp_path: Path) -> None:
    train(load_recipe(recipe, ["steps=8"]), tmp_path / "alone", say=unheard, quiet=True)
    train(load_recipe(recipe, [*changes(recipe, every=3), "steps=8"]), tmp_path / "asked", say=unheard, quiet=True)
    alone, asked = (read_log(tmp_path / run / "log.jsonl") for run in ("alone", "asked"))
    assert [line["loss"] for line in asked if "loss" in line] == [line["loss"] for line in alone]


def test_scores_grow_in_the_log(recipe: Path, tmp_path: Path) -> None:
    said: list[str] = []
    train(load_recipe(recipe, changes(recipe)), tmp_path / "asked", say=said.append, quiet=True)
    asked = read_log(tmp_path / "asked" / "log.jsonl")
    scores = {line["step"]: line for line in asked if "eval_colours_acc" in line}
    assert list(scores) == [0, 20, 40, 60, 70]
    assert scores[0]["eval_colours_acc"] < 1 == scores[70]["eval_colours_acc"]
    assert scores[70]["eval_words_exact_match"] == 1
    assert set(scores[0]) >= {"eval_colours_acc_norm", "eval_colours_acc_low", "eval_words_f1_high"}
    assert any("colours: 1 bad rows are left out" in line and "colours.jsonl:5" in line for line in said)
    curve = learning_curves({"asked": asked})["eval_colours_acc"]["asked"]
    assert [step for step, _ in curve] == [0, 20, 40, 60, 70]


def test_a_run_that_is_gone_on_with_asks_on(recipe: Path, tmp_path: Path) -> None:
    train(load_recipe(recipe, [*changes(recipe, every=2), "steps=4"]), tmp_path / "run", say=unheard, quiet=True)
    begun = tmp_path / "run" / "recipe.yaml"
    begun.write_text(begun.read_text().replace("steps: 4\n", "steps: 6\n"))
    resume(tmp_path / "run", say=unheard, quiet=True)
    steps = [line["step"] for line in read_log(tmp_path / "run/log.jsonl") if "eval_colours_acc" in line]
    assert steps == [0, 2, 4, 6]


def test_only_the_end_may_be_asked(recipe: Path, tmp_path: Path) -> None:
    train(
        load_recipe(recipe, [*changes(recipe, every=0, limit=2), "steps=3"]), tmp_path / "run", say=unheard, quiet=True
    )
    steps = [line["step"] for line in read_log(tmp_path / "run/log.jsonl") if "eval_colours_acc" in line]
    assert steps == [0, 3]


def test_what_cannot_be_asked_is_refused_before_anything_is_trained(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere\.jsonl: no such file"):
        train(load_recipe(recipe, ["tasks.names=nowhere.jsonl"]), tmp_path / "run", say=unheard, quiet=True)
    with pytest.raises(UserError, match="9 shots"):
        train(load_recipe(recipe, changes(recipe, shots=[9])), tmp_path / "run", say=unheard, quiet=True)
    with pytest.raises(UserError, match="tasks are for models that write"):
        load_recipe(recipe, [*changes(recipe), "objective.kind=reward", "model=x", "architecture=null"])
