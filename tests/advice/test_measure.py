"""The roads are walked on the user's rows: what wins follows from what they came to, and nothing is walked twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from intaglio.advice.measure import measure, score
from intaglio.advice.outcome import judge
from intaglio.advice.task import TaskSpec
from intaglio.errors import UserError
from scripted_workshop import ScriptedWorkshop, facts, formats

ALL = ["prompt", "few-shot", "RAG", "LoRA", "QLoRA", "LoRA+RAG"]


def task_of(rows: list[dict[str, str]], folder: Path, **more: Any) -> TaskSpec:
    """The same task for either data set."""
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    side = {"path": str(file), "rows": 10}
    return TaskSpec.model_validate(
        {
            "train": side,
            "test": side,
            "question": "{prompt}",
            "answer": "{completion}",
            "document": "{said}",
            "metric": "contains",
            "requests": 100,
            "shots": (1, 3, 5),
            "chosen_on": 4,
            "timed": 2,
            **more,
        }
    )


def walked(task: TaskSpec, folder: Path, stops_at: str = "") -> ScriptedWorkshop:
    """The workshop after a call of `measure`."""
    workshop = ScriptedWorkshop(task, folder, stops_at)
    measure(workshop, folder, lambda line: None)
    return workshop


@pytest.mark.parametrize(("rows", "winner"), [(facts(20), "RAG"), (formats(20), "LoRA")])
def test_the_data_decide_which_road_wins(rows: list[dict[str, str]], winner: str, tmp_path: Path) -> None:
    task = task_of(rows, tmp_path)
    outcomes = measure(ScriptedWorkshop(task, tmp_path), tmp_path, lambda line: None)
    assert [one.name for one in outcomes] == ALL
    verdict = judge(outcomes, task.requests)
    assert verdict.winner is not None
    assert verdict.winner.name == winner
    assert verdict.winner.quality.mean == 1
    assert outcomes[0].quality.mean == 0


def test_the_number_of_examples_is_chosen_on_the_train_side(tmp_path: Path) -> None:
    workshop = ScriptedWorkshop(task_of(formats(20), tmp_path, roads=("few-shot",)), tmp_path)
    (found,) = measure(workshop, tmp_path, lambda line: None)
    assert found.shots == 3
    chosen_on = {case.question for case in workshop.sides.train[:4]}
    trial, final = workshop.asked[: 3 * 4], workshop.asked[3 * 4 :]
    assert {messages[-1]["content"] for messages in trial} == chosen_on
    assert {messages[-1]["content"] for messages in final} == {case.question for case in workshop.sides.test}
    shown = {turn["content"] for messages in workshop.asked for turn in messages[:-1:2]}
    assert not shown & (chosen_on | {case.question for case in workshop.sides.test})


def test_no_test_row_is_trained_on(tmp_path: Path) -> None:
    workshop = walked(task_of(formats(20), tmp_path), tmp_path)
    assert list(workshop.rows) == ["LoRA", "QLoRA", "LoRA+RAG"]
    for rows in workshop.rows.values():
        asked = {messages[-1]["content"].split("\n")[-1] for messages, _ in rows}
        assert asked == {case.question for case in workshop.sides.train}
    assert all(messages[-1]["content"].startswith("A day: ") for messages, _ in workshop.rows["LoRA+RAG"])


def test_a_solved_example_is_not_its_own_passage(tmp_path: Path) -> None:
    workshop = walked(task_of(formats(20), tmp_path, document=None, roads=("LoRA+RAG",)), tmp_path)
    for messages, answer in workshop.rows["LoRA+RAG"]:
        passages, question = messages[-1]["content"].rsplit("\n\n", 1)
        assert f"{question}\n{answer}" not in passages
        assert "\n" in passages  # others, solved


def test_what_is_walked_is_not_walked_again(tmp_path: Path) -> None:
    task = task_of(facts(20), tmp_path)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        measure(ScriptedWorkshop(task, tmp_path, stops_at="QLoRA"), tmp_path, said.append)
    assert said == [f"road {place}/6: {name}" for place, name in enumerate(ALL[:5], 1)]
    later = walked(task, tmp_path)
    assert list(later.rows) == ["QLoRA", "LoRA+RAG"]
    assert walked(task, tmp_path).asked == []


def test_another_task_is_not_mixed_in(tmp_path: Path) -> None:
    task = task_of(facts(20), tmp_path, roads=("prompt",))
    walked(task, tmp_path)
    with pytest.raises(UserError, match="holds measurements of another task"):
        walked(task.updated(max_tokens=5), tmp_path)


def test_what_counts_as_right() -> None:
    assert score("exact", "Paris.", "paris") == 1
    assert score("exact", "It is Paris.", "Paris") == 0
    assert score("contains", "It is Paris.", "Paris") == 1
    assert score("f1", "Paris France", "Paris") == pytest.approx(2 / 3)
