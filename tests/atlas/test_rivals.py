"""Recipes against each other, at the smallest size that runs them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from intaglio.atlas.history import climb
from intaglio.atlas.rivals import Rivals
from intaglio.errors import UserError
from running import unmeasured

ATTENTION = {"score": "additive", "fusion": "after"}


@pytest.fixture(autouse=True)
def unpictured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs draw no curves of their own and do not measure the machine."""
    unmeasured(monkeypatch)


def recipe(folder: Path, name: str, attention: dict[str, str] | None, **changes: Any) -> str:
    pairs = folder / "pairs.jsonl"
    rows = ({"prompt": f"{n} ab", "completion": f"ab {n}"} for n in range(200))
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    fields = {
        "architecture": {
            "kind": "seq2seq",
            "embedding_size": 8,
            "hidden_size": 8,
            "cell": {"kind": "gru"},
            "attention": attention,
        },
        "tokenizer": {"kind": "characters"},
        "data": str(pairs),
        "objective": {"kind": "seq2seq"},
        "validation": 0.1,
        "over_long": "drop",
        "max_length": 32,
        "micro_batch": 8,
        "steps": 8,
        "evaluate_every": 4,
        "precision": "float32",
        "answers": {"rows": 5, "max_tokens": 8, "bleu": "13a"},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**fields, **changes}), encoding="utf-8")
    return str(path)


def test_each_gets_its_own_rate_and_all_the_same_questions(tmp_path: Path) -> None:
    recipes = (recipe(tmp_path, "plain", None), recipe(tmp_path, "attending", ATTENTION))
    rivals = Rivals(recipes, rates=(1e-3, 1e-2), seeds=2)
    said: list[str] = []
    found = climb([rivals], tmp_path / "out", said.append)["compare"]
    assert said[0] == "compare 1/8: plain, rate 0.001"
    assert [row[0] for row in found.rows] == ["plain", "attending"]
    assert [row[2] for row in found.rows] == ["8", "8"]
    assert found.columns[-2:] == ("bleu", "chrf")
    assert [verdict.claim for verdict in found.verdicts] == [
        "attending has more answers right than plain",
        "attending has a higher bleu than plain",
        "attending has a higher chrf than plain",
    ]
    parts = json.loads((tmp_path / "out" / "compare.json").read_text(encoding="utf-8"))["parts"]
    tried = {rate: parts[f"plain, rate {rate}"]["loss"] for rate in ("0.001", "0.01")}
    assert found.rows[0][1] == min(tried, key=lambda rate: tried[rate])
    assert parts["plain, seed 1"]["wanted"] == parts["attending, seed 2"]["wanted"]
    assert climb([rivals], tmp_path / "out", said.append)["compare"] == found


def test_equal_time_is_steps_by_pace(tmp_path: Path) -> None:
    recipes = (recipe(tmp_path, "plain", None), recipe(tmp_path, "attending", ATTENTION))
    rivals = Rivals(recipes, minutes=0.01, seeds=1)
    rows = climb([rivals], tmp_path / "out", lambda line: None)["compare"].rows
    parts = json.loads((tmp_path / "out" / "compare.json").read_text(encoding="utf-8"))["parts"]
    assert [int(row[2]) for row in rows] == [
        max(1, round(0.6 / parts[f"{name}, pace"])) for name in ("plain", "attending")
    ]


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    one = recipe(tmp_path, "plain", None)
    silent = recipe(tmp_path, "silent", None, answers=None)
    with pytest.raises(UserError, match="two recipes or more, each with a name of its own"):
        Rivals((one, one))
    with pytest.raises(UserError, match="has `steps` and takes `answers`"):
        Rivals((one, silent))
