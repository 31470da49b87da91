"""A task file and its rows: two sides without a question in common, asked as the templates say."""

import json
from pathlib import Path
from typing import Any

import pytest

from intaglio.advice.task import TaskSpec, load_task, read_sides
from intaglio.errors import UserError


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    """A file of rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def task(path: str, **more: Any) -> TaskSpec:
    """A task on one file, at the smallest size."""
    sides = {"train": {"path": path, "rows": 6}, "test": {"path": path, "rows": 4}}
    return TaskSpec.model_validate({**sides, "shots": (1, 2), "chosen_on": 2, **more})


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    """Twelve rows with ten different prompts."""
    rows = [{"prompt": f"q{n % 10}", "completion": f"a{n}"} for n in range(12)]
    return written(tmp_path / "pairs.jsonl", rows)


def test_no_question_stands_on_both_sides(pairs: str) -> None:
    sides = read_sides(task(pairs))
    train, test = ({case.question for case in side} for side in (sides.train, sides.test))
    assert (len(train), len(test), len(train & test)) == (6, 4, 0)
    assert read_sides(task(pairs)) == sides
    assert {case.question for case in read_sides(task(pairs, seed=1)).test} != test


def test_two_files_share_no_question_either(pairs: str, tmp_path: Path) -> None:
    other = written(tmp_path / "test.jsonl", [{"prompt": f"q{n}", "completion": "a"} for n in range(3)])
    sides = read_sides(task(pairs, test={"path": other, "rows": 3}))
    assert {case.question for case in sides.test} == {"q0", "q1", "q2"}
    assert not {case.question for case in sides.train} & {"q0", "q1", "q2"}


def test_too_few_rows_are_refused(pairs: str) -> None:
    with pytest.raises(UserError, match="5 rows with different questions, not 6"):
        read_sides(task(pairs, test={"path": pairs, "rows": 5}))


def test_templates_and_patterns_make_the_question(tmp_path: Path) -> None:
    rows = [{"input": f"Q: {n}? C: text {n}", "ideal": [f"{n}!"]} for n in range(12)] + [
        {"input": "no", "ideal": ["x"]}
    ]
    made = task(
        written(tmp_path / "rows.jsonl", rows),
        fields={"input": r"Q: (?P<asked>.*)\? C: (?P<told>.*)"},
        question="say {asked}",
        answer="{ideal[0]}",
        document="<{told}>",
        instruction="Be brief.",
    )
    case = next(case for case in read_sides(made).test)
    number = case.question.removeprefix("say ")
    assert (case.answer, case.document) == (f"{number}!", f"<text {number}>")
    assert case.messages == ({"role": "user", "content": f"Be brief.\n\nsay {number}"},)


def test_chats_end_in_what_is_right(tmp_path: Path) -> None:
    turns = [("system", "s"), ("user", "{n}"), ("assistant", "yes"), ("user", "and {n}?"), ("assistant", "no {n}")]
    rows = [{"messages": [{"role": r, "content": t.replace("{n}", str(n))} for r, t in turns]} for n in range(10)]
    case = read_sides(task(written(tmp_path / "chats.jsonl", rows))).train[0]
    assert [message["role"] for message in case.messages] == ["system", "user", "assistant", "user"]
    assert case.answer == f"no {case.question.removeprefix('and ').rstrip('?')}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"roads": ("RAGG",)}, "there is no 'RAGG'; did you mean RAG"),
        ({"question": "{prompt}"}, "give question and answer, or neither"),
        ({"documents": "here", "document": "{prompt}"}, "one of the two"),
        ({"shots": (5,)}, "too few rows"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], words: str, pairs: str, tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(json.dumps({**task(pairs).plain(), **changes}))
    with pytest.raises(UserError, match=words):
        load_task(file)


def test_a_template_that_fits_no_row_is_refused(pairs: str) -> None:
    with pytest.raises(UserError, match=r"pairs.jsonl:1: '\{prompts\}' does not fit the row"):
        read_sides(task(pairs, question="{prompts}", answer="{completion}"))


def test_rows_without_an_answer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no question with an answer"):
        read_sides(task(written(tmp_path / "texts.jsonl", [{"text": "only this"}])))


def test_the_shipped_examples_differ_in_their_data_alone() -> None:
    folder = Path(__file__).parents[2] / "recipes" / "advice"
    facts, form = (load_task(folder / f"{name}.yaml").plain() for name in ("facts", "format"))
    of_the_data = {"train", "test", "fields", "question", "answer", "document"}
    assert {key for key in facts | form if facts.get(key) != form.get(key)} == of_the_data
    assert (facts["train"]["rows"], facts["test"]["rows"]) == (form["train"]["rows"], form["test"]["rows"])
