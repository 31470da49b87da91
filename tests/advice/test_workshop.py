"""A tiny model is trained by an adapter, merged and asked, and a second call finds the run."""

import json
from pathlib import Path

import pytest

from intaglio.advice import workshop as workshop_module
from intaglio.advice.measure import measure
from intaglio.advice.roads import ROADS
from intaglio.advice.task import TaskSpec, read_sides
from intaglio.advice.workshop import LocalWorkshop
from intaglio.errors import UserError
from scripted_workshop import HashEmbedder, facts

TRAINING = {"steps": 2, "max_length": 128, "precision": "float32"}


@pytest.fixture
def task(toy_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskSpec:
    """A task for a model of random weights."""
    monkeypatch.setattr(workshop_module, "load_embedder", lambda name, say: HashEmbedder())
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in facts(12)), encoding="utf-8")
    sides = {"train": {"path": str(file), "rows": 6}, "test": {"path": str(file), "rows": 3}}
    fixed = {"shots": (1,), "passages": (1,), "chosen_on": 2, "timed": 2, "max_tokens": 4}
    return TaskSpec.model_validate({"model": str(toy_dir), "training": TRAINING, **sides, **fixed})


def test_every_kind_of_road_is_walked_with_a_model(task: TaskSpec, tmp_path: Path) -> None:
    made = task.updated(roads=("prompt", "QLoRA", "LoRA+RAG"))
    out = tmp_path / "out"
    found = measure(LocalWorkshop(made, read_sides(made), out, lambda line: None), out, lambda line: None)
    assert [one.name for one in found] == ["prompt", "QLoRA", "LoRA+RAG"]
    assert all((len(one.scores), len(one.seconds)) == (3, 2) for one in found)
    assert [one.training_seconds > 0 for one in found] == [False, True, True]
    assert found[2].index_seconds > 0
    assert found[2].prompt_tokens > found[1].prompt_tokens == found[0].prompt_tokens
    rows = [json.loads(line) for line in (out / "rows" / "LoRA+RAG.jsonl").read_text().splitlines()]
    assert len(rows) == 6
    assert all("Use what stands above." in row["messages"][0]["content"] for row in rows)


def test_a_run_that_has_ended_is_not_trained_again(task: TaskSpec, tmp_path: Path) -> None:
    lora = next(road for road in ROADS if road.name == "LoRA")
    said: list[str] = []
    made = LocalWorkshop(task, read_sides(task), tmp_path, said.append)
    rows = [(case.messages, case.answer) for case in made.sides.train]
    assert made.train(lora, rows) == made.train(lora, rows)
    assert any("has ended at step 2" in line for line in said)


def test_what_is_no_part_of_a_recipe_is_refused(task: TaskSpec, tmp_path: Path) -> None:
    wrong = task.updated(training={"stepz": 3})
    made = LocalWorkshop(wrong, read_sides(wrong), tmp_path, lambda line: None)
    with pytest.raises(UserError, match="training: unknown key 'stepz'; did you mean steps"):
        made.train(next(road for road in ROADS if road.name == "LoRA"), [(made.sides.train[0].messages, "a")])
