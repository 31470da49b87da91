"""The data-quality report on rows that compare answers: the same problems, with the side they are on."""

from typing import Any

import pytest

from intaglio.data.check import DataCheck
from intaglio.data.formats import Format
from intaglio.data.readers import Row
from intaglio.text.chat_templates import load_template
from intaglio.text.tokenizer import Tokenizer
from toy_tokenizers import byte_level


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def chatml() -> Tokenizer:
    return Tokenizer(byte_level(), {"eos_token": "<|im_end|>"}, chat_templates=load_template("chatml"))


def looked(check: DataCheck, *values: Any) -> list[tuple[str, str, str]]:
    found = [check.look(Row(value, f"f:{line}")) for line, value in enumerate(values, 1)]
    return [(finding.problem, finding.where, finding.what) for row in found for finding in row]


def pair(prompt: Any, chosen: Any, rejected: Any, **more: Any) -> dict[str, Any]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, **more}


ASKED = [user("hi")]
GOOD = [
    pair(ASKED, [assistant("hello you")], [assistant("go away")]),
    {"chosen": "Q: a A: b", "rejected": "Q: a A: c"},
    {"prompt": ASKED, "answers": ["hello you", "hello", "no"]},
    {"prompt": "2+2=", "completion": "4", "label": True},
    {"prompt": ASKED, "completion": [assistant("4")], "label": False},
    {"prompt": ASKED, "answer": 4},
    {"prompt": "2+3="},
]


def test_good_rows_have_nothing_wrong() -> None:
    for check in (DataCheck(), DataCheck(chatml(), context=200)):
        assert looked(check, *GOOD) == []
        assert check.report.formats == {"preference": 2, "ranked": 1, "unpaired": 2, "prompt": 2}
        assert check.report.judged == {"wanted": 1, "unwanted": 1}
        assert check.report.notes == []
        assert len(check.report.lengths) == len(GOOD)


BAD: list[tuple[dict[str, Any], str, str]] = [
    (pair(ASKED, [assistant("a")], [assistant("a")]), "same answer", "chosen and rejected say the same"),
    ({"prompt": "p", "answers": ["a", "b", "a"]}, "same answer", "answers[0] and answers[2] say the same"),
    (pair("p", "a", " "), "empty", "rejected: completion is empty"),
    (pair("", "a", "b"), "empty", "prompt is empty"),
    ({"chosen": "a", "rejected": "b"}, "empty", "prompt is empty"),
    (pair(ASKED, [assistant("a<|im_end|>")], [assistant("b")]), "special token", "chosen: messages[1] has <|im_end|>"),
    (pair([user("<|im_end|>")], [assistant("a")], [assistant("b")]), "special token", "messages[0] has <|im_end|>"),
    (pair(ASKED, [assistant("a"), user("b")], [assistant("b")]), "role order", "chosen: the last word is the user's"),
    (pair([user("a"), user("b")], "a", "b"), "role order", "messages[1] is from the user again"),
    ({"prompt": [assistant("a")], "id": 1}, "role order", "the assistant begins"),
    ({"prompt": "p", "chosen": "a"}, "no format", "fits no format"),
    (pair("p", "a", "b", margin="x"), "no format", "margin: is 'x'"),
]


@pytest.mark.parametrize(("value", "problem", "what"), BAD)
def test_each_problem_is_found_once_with_the_side_it_is_on(value: dict[str, Any], problem: str, what: str) -> None:
    if value == {"prompt": "p", "chosen": "a"}:
        value = {"chosen": "a"}
    found = [one for one in looked(DataCheck(), value) if one[0] == problem]
    assert len(found) == 1
    assert found[0][2].startswith(what)


def test_a_pair_is_as_long_as_its_prompt_with_the_longer_side() -> None:
    check, ours = DataCheck(chatml(), context=8), chatml()
    row = pair("the user", " says hi", " says hello to the assistant there")
    lengths = [len(ours.encode(row[key])) + (key != "prompt") for key in ("prompt", "chosen", "rejected")]
    assert looked(check, row) == [
        (
            "too long",
            "f:1",
            f"rejected: has {lengths[0] + lengths[2]} tokens, {lengths[0] + lengths[2] - 8} more than fit",
        )
    ]
    assert check.report.lengths == [lengths[0] + lengths[2]]
    assert check.report.tokens == 2 * lengths[0] + lengths[1] + lengths[2]
    assert check.report.supervised == lengths[1] + lengths[2]


def test_how_often_the_longer_answer_wins() -> None:
    check = DataCheck()
    looked(check, *GOOD, pair("p", "a", "long"))
    assert (check.report.pairs, check.report.longer_wins) == (6, 4)  # 1 of 1, 0 of 1, 3 of 3, 0 of 1
    assert check.report.longer_share == 4 / 6
    assert DataCheck().report.longer_share is None


def test_a_set_may_be_read_as_what_its_keys_do_not_tell_first() -> None:
    row = {**GOOD[0], "messages": [user("a"), assistant("b")]}
    told, untold = DataCheck(format=Format.PREFERENCE), DataCheck()
    looked(told, row)
    looked(untold, row)
    assert (told.report.formats, untold.report.formats) == ({"preference": 1}, {"messages": 1})


def test_near_duplicates_are_found_among_pairs() -> None:
    long = "Tell me about the quick brown fox that jumps over the lazy dog and then goes home"
    rows = [pair(long, "Yes, gladly.", "No."), pair(long + "!", "Yes, gladly.", "No.")]
    assert looked(DataCheck(), *rows) == [("near duplicate", "f:2", "says nearly what the row at f:1 says")]
