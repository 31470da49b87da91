"""What the demo trains is what recipes may say, and its rows are what the other commands read."""

import json
from pathlib import Path

import pytest

from intaglio.demo import data, training
from intaglio.demo.stage import Desk
from intaglio.evaluation.tasks.own_rows import own_rows
from intaglio.specs import validate
from intaglio.training.recipe import Recipe

HEADLINES = [{"text": f"man {i} bites dog", "label": ("serious", "sarcastic")[i % 2]} for i in range(20)]


def desk(folder: Path, quick: bool) -> Desk:
    found = {"pull": {"path": "MODEL", "tuning": "ROWS"}, "tune": {"path": "TUNED"}}
    return Desk(folder, quick, 1, lambda line: None, found)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("make", [training.pretrain_recipe, training.tune_recipe, training.prefer_recipe])
def test_recipes_are_recipes(tmp_path: Path, quick: bool, make: object) -> None:
    assert callable(make)
    recipe = validate(Recipe, make(desk(tmp_path, quick)), "demo")
    assert recipe.steps
    assert recipe.steps < 50 if quick else recipe.steps >= 40


def test_the_exam_and_the_training_share_no_headline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in [*HEADLINES, *HEADLINES]))
    monkeypatch.setattr(data, "data_rows", lambda name, say: rows)
    files = data.write_rows(desk(tmp_path, False), tmp_path / "pull", exam=8, tuning=50)
    exam, tuning = (files[name].read_text().splitlines() for name in ("exam", "tuning"))
    assert (len(exam), len(tuning)) == (8, 12)  # each headline once
    asked = {json.loads(line)["messages"][0]["content"] for line in exam}
    assert not asked & {json.loads(line)["messages"][0]["content"] for line in tuning}
    task = own_rows(files["exam"], "exam")
    assert task.kind == "choice"
    assert not task.bad_rows
    assert all(item.right[0].strip() == json.loads(line)["answer"] for item, line in zip(task.items, exam, strict=True))
