"""Compared answers from one format to another: nothing is lost, or it is refused."""

from typing import Any

import pytest

from intaglio.data.conversion import convert
from intaglio.data.formats import Format
from intaglio.data.readers import Row, Skipped
from intaglio.errors import UserError


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


ASKED = [user("hi")]
PAIR = {"prompt": ASKED, "chosen": [assistant("yes")], "rejected": [assistant("no")]}
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def converted(to: Format, *values: dict[str, Any], left_out: list[Skipped] | None = None) -> list[dict[str, Any]]:
    rows = [Row(value, f"f:{line}") for line, value in enumerate(values, 1)]
    return list(convert(rows, to, left_out))


def test_an_implicit_prompt_is_written_out() -> None:
    implicit = {"chosen": ASKED + PAIR["chosen"], "rejected": ASKED + PAIR["rejected"], "id": 7}
    assert converted(Format.PREFERENCE, implicit) == [{**PAIR, "id": 7}]
    assert converted(Format.PREFERENCE, PAIR) == [PAIR]
    rich = {**PAIR, "margin": 0.5, "weight": 2.0, "tools": TOOLS}
    assert converted(Format.PREFERENCE, rich) == [rich]
    assert converted(Format.PREFERENCE, {"chosen": "Q A", "rejected": "Q B"}) == [
        {"prompt": "Q", "chosen": " A", "rejected": " B"}
    ]


def test_a_pair_becomes_two_judged_answers_and_they_the_pair_again() -> None:
    row = {**PAIR, "id": 7, "tools": TOOLS}
    judged = converted(Format.UNPAIRED, row)
    assert judged == [
        {"prompt": ASKED, "completion": [assistant("yes")], "label": True, "id": 7, "tools": TOOLS},
        {"prompt": ASKED, "completion": [assistant("no")], "label": False, "id": 7, "tools": TOOLS},
    ]
    assert converted(Format.PREFERENCE, *judged) == [row]


def test_pairs_come_apart_as_the_reference_takes_them_apart() -> None:
    from datasets import Dataset
    from trl.data_utils import unpair_preference_dataset

    pairs = [{"prompt": f"p{i}", "chosen": f"a{i}", "rejected": f"b{i}", "id": i} for i in range(5)]
    theirs = unpair_preference_dataset(Dataset.from_list(pairs))
    order = lambda row: (row["id"], not row["label"])  # noqa: E731
    assert sorted(theirs.to_list(), key=order) == converted(Format.UNPAIRED, *pairs)


def test_a_ranking_becomes_weighted_pairs() -> None:
    row = {"prompt": "p", "answers": ["a", "b", "c"], "scores": [1, 3, 1], "id": 7}
    assert converted(Format.PREFERENCE, row) == [
        {"prompt": "p", "chosen": "b", "rejected": "a", "weight": 1 / 3, "id": 7},
        {"prompt": "p", "chosen": "b", "rejected": "c", "weight": 1 / 3, "id": 7},
    ]
    two = {"prompt": "p", "answers": ["a", "b"]}
    assert converted(Format.PREFERENCE, two) == [{"prompt": "p", "chosen": "a", "rejected": "b"}]
    assert converted(Format.RANKED, *converted(Format.PREFERENCE, two)) == [two]


def test_judged_answers_make_pairs_where_a_prompt_has_both_kinds() -> None:
    rows = [
        {"prompt": "p", "completion": "good", "label": True, "by": "x", "id": 1},
        {"prompt": "q", "completion": "alone", "label": True},
        {"prompt": "p", "completion": "bad", "label": False, "by": "x", "id": 2},
        {"prompt": "p", "completion": "worse", "label": False, "by": "y"},
    ]
    left_out: list[Skipped] = []
    assert converted(Format.PREFERENCE, *rows, left_out=left_out) == [
        {"prompt": "p", "chosen": "good", "rejected": "bad", "weight": 0.5, "by": "x"},
        {"prompt": "p", "chosen": "good", "rejected": "worse", "weight": 0.5},
    ]
    assert left_out == [Skipped("f:2", "none of the answers to its prompt was judged otherwise")]


def test_rows_that_are_what_is_wanted_stay_as_they_are() -> None:
    rows: list[tuple[Format, dict[str, Any]]] = [
        (Format.RANKED, {"prompt": "p", "answers": ["a", "b"], "ranks": [2, 1], "id": 1}),
        (Format.UNPAIRED, {"prompt": "p", "completion": "a", "label": "true"}),
        (Format.PROMPT, {"prompt": ASKED, "answer": 4}),
    ]
    for format, row in rows:
        assert converted(format, row) == [row]


@pytest.mark.parametrize(
    ("value", "to", "reason"),
    [
        (PAIR, Format.MESSAGES, "which answer is the better one"),
        ({**PAIR, "margin": 1}, Format.UNPAIRED, "no place for a margin"),
        ({**PAIR, "weight": 2}, Format.RANKED, "no place for a weight"),
        (PAIR, Format.PROMPT, "its answers"),
        ({"prompt": "p", "answers": ["a", "b"]}, Format.UNPAIRED, "nothing says whether the answer was wanted"),
        ({"prompt": "p", "completion": "a", "label": True}, Format.PROMPT_COMPLETION, "whether the answer was wanted"),
        ({"prompt": "p", "completion": "a"}, Format.UNPAIRED, "nothing says whether the answer was wanted"),
        ({"prompt": "p", "completion": "a"}, Format.PREFERENCE, "there is no second answer"),
        ({"prompt": "p"}, Format.MESSAGES, "it has no answer"),
        ({**PAIR, "label": 3}, Format.UNPAIRED, "its own 'label' would be written over"),
        ({**PAIR, "rejected": 3}, Format.PREFERENCE, "rejected: is int, not a text"),
    ],
)
def test_what_would_lose_something_is_refused(value: dict[str, Any], to: Format, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        converted(to, value)
    assert str(caught.value).startswith("f:1: ")
    assert reason in str(caught.value)
