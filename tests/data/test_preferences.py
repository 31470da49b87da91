"""Rows of preferences: pairs, rankings, single judgements, prompts; what is implicit in them, and what is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.data.preferences import Preference, judged_of, preferences_of, prompt_of
from intaglio.data.readers import Row
from intaglio.errors import UserError


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "S"}
ASKED = [SYSTEM, user("a")]
GOOD, BAD = [assistant("yes")], [assistant("no")]


def pairs(**value: Any) -> list[Preference]:
    return preferences_of(Row(value, "f:7"))


def pair(**value: Any) -> Preference:
    (only,) = pairs(**value)
    return only


def sides(preference: Preference) -> tuple[Any, Any, Any]:
    return preference.prompt, preference.chosen, preference.rejected


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [
        ("ab", "abc", ("ab", "", "c")),  # one is where the other begins
        ("P ", "L", ("", "P ", "L")),  # the last letter of a side is not the one before its first
        ("Q: why? A: so", "Q: why? A: no", ("Q: why? A:", " so", " no")),
        ("ab ", "ab c", ("ab", " ", " c")),
        ("same ", "same ", ("same", " ", " ")),
        ("", "x", ("", "", "x")),
    ],
)
def test_an_implicit_prompt_of_texts(chosen: str, rejected: str, expected: tuple[str, str, str]) -> None:
    assert sides(pair(chosen=chosen, rejected=rejected)) == expected


@given(st.text(alphabet="ab ", min_size=1, max_size=5), st.text(alphabet="ab ", max_size=3))
def test_an_implicit_prompt_is_what_the_reference_takes_where_that_is_right(prompt: str, rest: str) -> None:
    from trl.data_utils import maybe_extract_prompt

    # where one is all of the other, or nothing is shared, TRL 1.16 is wrong (its PR 6498): see above
    chosen, rejected = f"{prompt}c{rest}", f"{prompt}d"
    theirs = maybe_extract_prompt({"chosen": chosen, "rejected": rejected})
    assert sides(pair(chosen=chosen, rejected=rejected)) == (theirs["prompt"], theirs["chosen"], theirs["rejected"])


@given(st.text(max_size=12), st.text(max_size=12))
def test_prompt_and_side_put_together_are_the_side_as_it_was(chosen: str, rejected: str) -> None:
    prompt, good, bad = sides(pair(chosen=chosen, rejected=rejected))
    assert (prompt + good, prompt + bad) == (chosen, rejected)


def test_an_implicit_prompt_of_messages_is_the_turns_in_common() -> None:
    from trl.data_utils import maybe_extract_prompt

    value = {"chosen": [*ASKED, *GOOD], "rejected": [*ASKED, *BAD]}
    assert sides(pair(**value)) == (tuple(ASKED), tuple(GOOD), tuple(BAD))
    assert maybe_extract_prompt(value) == {"prompt": ASKED, "chosen": GOOD, "rejected": BAD}
    longer = pair(chosen=[*ASKED, *GOOD, user("b"), *GOOD], rejected=[*ASKED, *GOOD])
    assert sides(longer) == ((*ASKED, *GOOD), (user("b"), *GOOD), ())


def test_a_prompt_that_is_a_text_beside_messages_is_what_the_user_asks_even_if_they_say_it_again() -> None:
    alone = pair(prompt="a", chosen=GOOD, rejected=BAD)
    again = pair(prompt="a", chosen=[user("a"), *GOOD], rejected=[user("a"), *BAD])
    assert sides(alone) == sides(again) == ((user("a"),), tuple(GOOD), tuple(BAD))
    assert sides(pair(prompt=ASKED, chosen="yes", rejected="no")) == (tuple(ASKED), tuple(GOOD), tuple(BAD))


def test_what_a_pair_has_beside_its_sides() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    plain = pair(prompt="p", chosen="a", rejected="b")
    rich = pair(prompt="p", chosen="a", rejected="b", margin="0.5", weight=2, tools=json.dumps(tools))
    assert (plain.margin, plain.weight, plain.tools, plain.where) == (None, 1.0, None, "f:7")
    assert (rich.margin, rich.weight, rich.tools) == (0.5, 2.0, tuple(tools))
    spelled = pair(prompt=json.dumps(ASKED), chosen=json.dumps(GOOD), rejected=json.dumps(BAD))
    assert sides(spelled) == (tuple(ASKED), tuple(GOOD), tuple(BAD))


def compared(**value: Any) -> list[tuple[str, str]]:
    found = [(one.chosen[0], one.rejected[0]) for one in pairs(prompt=ASKED, **value)]
    return [(chosen["content"], rejected["content"]) for chosen, rejected in found]  # type: ignore[index]


def test_a_ranking_becomes_all_its_pairs_which_count_as_one_prompt() -> None:
    ranking = pairs(prompt=ASKED, answers=["a", "b", "c", "d"])
    assert len(ranking) == 6
    assert sum(one.weight for one in ranking) == pytest.approx(1)
    assert {one.weight for one in ranking} == {1 / 6}
    assert compared(answers=["a", "b", "c"]) == [("a", "b"), ("a", "c"), ("b", "c")]


def test_scores_and_ranks_say_the_order_and_answers_of_one_rank_make_no_pair() -> None:
    assert compared(answers=["a", "b", "c"], scores=[0.1, 3, 2]) == [("b", "c"), ("b", "a"), ("c", "a")]
    assert compared(answers=["a", "b", "c"], ranks=[2, 1, 2]) == [("b", "a"), ("b", "c")]
    assert {one.weight for one in pairs(prompt="p", answers=["a", "b", "c"], ranks=[2, 1, 2])} == {1 / 3}
    assert compared(answers=["a", "b"], ranks=[1, 1]) == []
    answers = [[assistant("a")], [assistant("b")]]
    assert compared(answers=answers) == [("a", "b")]


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"prompt": "p"}, r"^f:7: compares nothing \(keys: prompt\); it takes chosen and rejected"),
        ({"prompt": "p", "chosen": "a"}, "^f:7: rejected: is missing"),
        ({"prompt": "p", "chosen": "a", "rejected": GOOD}, "chosen and rejected: one is a list of messages"),
        ({"question": "p", "chosen": "a", "rejected": "b"}, "prompt: is missing; rename 'question'"),
        ({"chosen": GOOD, "rejected": BAD}, "prompt: is missing; the sides have no turn in common"),
        ({"prompt": "z", "chosen": [user("a"), *GOOD], "rejected": [user("a"), *BAD]}, "is not what the messages"),
        ({"prompt": [], "chosen": GOOD, "rejected": BAD}, "prompt: a conversation needs at least one message"),
        ({"prompt": ASKED, "chosen": [], "rejected": BAD}, "chosen: a conversation needs at least one message"),
        ({"prompt": "p", "chosen": "a", "rejected": "b", "margin": "wide"}, "margin: is 'wide', not a number"),
        ({"prompt": "p", "chosen": "a", "rejected": "b", "margin": float("nan")}, "margin: is nan, not a number"),
        ({"prompt": "p", "chosen": "a", "rejected": "b", "weight": 0}, "weight: is 0; leave the row out"),
        (
            {"prompt": ASKED, "chosen": [assistant("a", train=False)], "rejected": BAD},
            r"chosen\[0\]: says train: false",
        ),
        ({"prompt": "p", "answers": ["a"]}, "answers: has 1 answers"),
        ({"answers": ["a", "b"]}, "prompt: is missing"),
        ({"prompt": "p", "answers": "ab"}, "answers: is str, not a list"),
        ({"prompt": "p", "answers": ["a", 3]}, r"answers\[1\]: is int, not a text"),
        ({"prompt": "p", "answers": ["a", "b"], "scores": [1]}, "scores: has 1 entries where answers has 2"),
        ({"prompt": "p", "answers": ["a", "b"], "ranks": [1, True]}, r"ranks\[1\]: is True, not a number"),
        ({"prompt": "p", "answers": ["a", "b"], "ranks": [1, 2], "scores": [1, 2]}, "says the order twice"),
    ],
)
def test_a_row_that_compares_nothing_says_why(value: dict[str, Any], what: str) -> None:
    with pytest.raises(UserError, match=what):
        pairs(**value)


@pytest.mark.parametrize(("label", "wanted"), [(True, True), (0, False), ("False", False), (1, True), ("true", True)])
def test_a_judged_answer(label: Any, wanted: bool) -> None:
    judged = judged_of(Row({"prompt": ASKED, "completion": GOOD, "label": label}, "f:7"))
    assert (judged.prompt, judged.completion, judged.label) == (tuple(ASKED), tuple(GOOD), wanted)
    again = judged_of(Row({"prompt": "a", "completion": [user("a"), *GOOD], "label": label}, "f:7"))
    assert (again.prompt, again.completion) == ((user("a"),), tuple(GOOD))


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"prompt": "p", "completion": "a"}, "f:7: label: is missing; true for an answer that is wanted"),
        ({"prompt": "p", "completion": "a", "label": "good"}, "label: is 'good', not true or false"),
        ({"completion": "a", "label": True}, "prompt: is missing"),
        ({"prompt": "p", "label": True}, "completion: is missing"),
    ],
)
def test_a_judged_answer_that_is_none(value: dict[str, Any], what: str) -> None:
    with pytest.raises(UserError, match=what):
        judged_of(Row(value, "f:7"))


def test_a_prompt_alone_keeps_what_else_its_row_says() -> None:
    found = prompt_of(Row({"prompt": ASKED, "answer": 42, "tools": []}, "f:7"))
    assert (found.prompt, found.columns) == (tuple(ASKED), {"answer": 42})
    assert prompt_of(Row({"messages": [*ASKED, *GOOD], "id": 1}, "f")).prompt == tuple(ASKED)
    assert prompt_of(Row({"chosen": [*ASKED, *GOOD], "rejected": [*ASKED, *BAD]}, "f")).prompt == tuple(ASKED)
    assert prompt_of(Row({"prompt": "p", "completion": "c"}, "f")).columns == {"completion": "c"}
    beside = {"prompt": "a", "chosen": [user("a"), *GOOD], "rejected": [user("a"), *BAD]}
    assert prompt_of(Row(beside, "f")).prompt == (user("a"),)
    assert prompt_of(Row({"prompt": "a", "answers": [4, 5]}, "f")).prompt == "a"
    for value in ("a text", {"text": "a"}, {"messages": GOOD}):
        with pytest.raises(UserError, match=r"no prompt|nothing is asked"):
            prompt_of(Row(value, "f:7"))
