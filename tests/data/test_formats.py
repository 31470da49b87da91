"""Formats of training data: told by their keys, read into samples, converted where nothing is lost."""

import json
import re
from typing import Any

import pytest

from intaglio.data.conversion import convert
from intaglio.data.formats import Format, Sample, detect, to_sample
from intaglio.data.readers import Row
from intaglio.errors import UserError


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def sample(value: Any) -> Sample:
    row = Row(value, "f:7")
    return to_sample(row, detect(row))


SYSTEM = {"role": "system", "content": "S"}
CHAT = [SYSTEM, user("a"), assistant("b"), user("c"), assistant("d")]
SHAREGPT = [
    {"from": "system", "value": "S"},
    {"from": "human", "value": "a"},
    {"from": "gpt", "value": "b"},
    {"from": "human", "value": "c"},
    {"from": "gpt", "value": "d"},
]
ALPACA = {"instruction": "c", "input": "", "output": "d", "system": "S", "history": [["a", "b"]]}
CALL = {"name": "weather", "arguments": {"city": "Köln"}}
CALLING = [
    user("a"),
    {"role": "assistant", "tool_calls": [{"type": "function", "function": CALL}]},
    {"role": "tool", "content": "12°"},
    assistant("It is 12°"),
]
SHAREGPT_CALLING = [
    {"from": "human", "value": "a"},
    {"from": "function_call", "value": json.dumps(CALL, ensure_ascii=False)},
    {"from": "observation", "value": "12°"},
    {"from": "gpt", "value": "It is 12°"},
]
TOOLS = [{"type": "function", "function": {"name": "weather"}}]

DETECTED: list[tuple[Any, str]] = [
    ("a text", "text"),
    ({"text": "a", "source": "x"}, "text"),
    ({"messages": CHAT, "prompt": "a", "text": "rendered"}, "messages"),
    ({"messages": json.dumps(CHAT)}, "messages"),
    ({"conversations": CHAT}, "messages"),
    ({"conversations": SHAREGPT}, "sharegpt"),
    ({"messages": SHAREGPT}, "sharegpt"),
    ({"prompt": "a", "completion": "b"}, "prompt_completion"),
    ({"instruction": "a", "input": "b", "output": "c", "text": "rendered"}, "alpaca"),
    ({"input_ids": [1], "labels": [1], "text": "a"}, "tokens"),
    ({"text": "a", "messages": None}, "text"),
    ({"chosen": "a", "rejected": "b"}, "preference"),
    ({"prompt": "a", "chosen": CHAT, "rejected": CHAT, "score": 1}, "preference"),
    ({"prompt": "a", "chosen": CHAT, "rejected": CHAT, "messages": CHAT}, "messages"),  # rendered for fine-tuning
    ({"prompt": "a", "answers": ["b", "c"]}, "ranked"),
    ({"prompt": "a", "completion": "b", "label": False}, "unpaired"),
    ({"prompt": "a", "completion": "b", "label": "True"}, "unpaired"),
    ({"prompt": "a", "completion": "b", "label": 1}, "prompt_completion"),  # a class, as likely as a judgement
    ({"prompt": "a", "completion": "b", "label": "sports"}, "prompt_completion"),
    ({"prompt": "a", "answer": 7}, "prompt"),
    ({"prompt": "a", "text": "a b"}, "text"),
]


@pytest.mark.parametrize(("value", "format"), DETECTED)
def test_formats_are_told_by_keys(value: Any, format: str) -> None:
    assert detect(Row(value, "f:1")) == format


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"chosen": "a", "rejected": "b"}, "compares two answers (keys: chosen, rejected); the objectives dpo, orpo"),
        ({"prompt": "a", "answers": ["b", "c"]}, "ranks answers"),
        ({"prompt": "a", "completion": "b", "label": True}, "judges an answer (keys: prompt, completion, label)"),
        ({"prompt": "a", "completions": "b"}, "has a prompt and no completion (keys: prompt, completions)"),
    ],
)
def test_what_compares_answers_is_no_sample_to_learn_from(value: Any, what: str) -> None:
    with pytest.raises(UserError, match=f"^f:7: {re.escape(what)}"):
        sample(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"promt": "a", "completion": "b"}, "keys: promt, completion.*prompt_completion.*: prompt is missing"),
        ({"instruction": "a", "answer": "b"}, "alpaca.*: output is missing"),
        ({"conversation": []}, "sharegpt.*conversations is missing"),
        ({}, r"keys: none"),
    ],
)
def test_a_row_of_no_format_names_its_keys_and_the_nearest(value: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"^f:7: fits no format .*{message}"):
        detect(Row(value, "f:7"))


@pytest.mark.parametrize(
    "value", [{"messages": CHAT}, {"conversations": CHAT}, {"conversations": SHAREGPT}, {"messages": SHAREGPT}, ALPACA]
)
def test_a_chat_is_the_same_chat_in_every_format(value: Any) -> None:
    read = sample(value)
    assert (read.kind, list(read.messages), read.where, read.tools) == ("chat", CHAT, "f:7", None)


def test_alpaca_joins_instruction_and_input() -> None:
    assert list(sample({"instruction": "a", "input": "b", "output": "c"}).messages) == [user("a\nb"), assistant("c")]
    assert list(sample({"instruction": "a", "input": None, "output": "c"}).messages) == [user("a"), assistant("c")]


def test_tools_and_calls() -> None:
    ours = sample({"messages": CALLING, "tools": TOOLS})
    theirs = sample({"conversations": SHAREGPT_CALLING, "tools": json.dumps(TOOLS)})
    assert ours.messages == theirs.messages == tuple(CALLING)
    assert ours.tools == theirs.tools == tuple(TOOLS)


def test_prompt_and_completion() -> None:
    plain = sample({"prompt": "a", "completion": "b"})
    assert (plain.kind, plain.prompt, plain.completion) == ("completion", "a", "b")
    data = sample({"prompt": "[1, 2]", "completion": '[{"sum": 3}]'})
    assert (data.prompt, data.completion) == ("[1, 2]", '[{"sum": 3}]')
    chat = sample({"prompt": json.dumps(CHAT[:4]), "completion": CHAT[4:]})
    assert (chat.kind, list(chat.messages), chat.prompt) == ("chat", CHAT, tuple(CHAT[:4]))


def test_flags_survive_and_gaps_do_not() -> None:
    flagged = [user("a"), assistant("b", train=False), user("c"), assistant("d", train=True, name=None)]
    kept = [user("a"), assistant("b", train=False), user("c"), assistant("d")]
    assert list(sample({"messages": flagged}).messages) == kept
    weighted = [user("a"), assistant("b", weight=0), user("c"), assistant("d", weight=1)]
    assert list(sample({"messages": weighted}).messages) == kept
    turns = [{**SHAREGPT[1]}, {**SHAREGPT[2], "train": False}]
    assert list(sample({"conversations": turns}).messages) == [user("a"), assistant("b", train=False)]


def test_tokens() -> None:
    read = sample({"input_ids": [5, 6, 7, 2, 2], "labels": [-100, 6, 7, 2, -100], "attention_mask": [1, 1, 1, 1, 0]})
    assert (read.ids, read.labels_mask) == ((5, 6, 7, 2), (False, True, True, True))
    assert sample({"input_ids": [5, 6]}).labels_mask is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"messages": "hello"}, "messages: is str, not a list"),
        ({"messages": []}, "messages: a conversation needs"),
        ({"messages": [user("a"), {"role": "assistant"}]}, "messages[1].content: is missing"),
        ({"messages": [{**user("a"), "train": True}]}, "messages[0].train: asks to learn what the user wrote"),
        ({"messages": [assistant("a", train="no")]}, "messages[0].train: is 'no', not true or false"),
        ({"messages": [assistant("a", weight=0.5)]}, "messages[0].weight: is 0.5, not 0 or 1"),
        ({"conversations": [{"from": "humna", "value": "a"}]}, "conversations[0].from: is 'humna'; did you mean human"),
        ({"conversations": [{"from": "gpt"}]}, "conversations[0]: is not an object with from"),
        ({"conversations": [{"from": "function_call", "value": "{"}]}, "conversations[0].value: is not the JSON"),
        ({"conversations": [{"from": "function_call", "value": "[1]"}]}, "conversations[0].value: names no function"),
        ({"prompt": "a", "completion": [assistant("b")]}, "prompt and completion: one is a list of messages"),
        ({"prompt": 1, "completion": "b"}, "prompt: is int, not a text"),
        ({"instruction": "a", "output": ["b"]}, "output: is list, not a text"),
        ({"instruction": "a", "output": "b", "history": [["a"]]}, "history[0]: is not a pair"),
        ({"text": ["a"]}, "text: is list, not a text"),
        ({"input_ids": [1, "2"]}, "input_ids: is not a list of whole numbers"),
        ({"input_ids": [1, -2]}, "input_ids: has a negative id"),
        ({"input_ids": [1, 2], "labels": [1]}, "labels: has 1 entries where input_ids has 2"),
        ({"input_ids": [1, 2], "labels": [2, -100]}, "labels[0]: is 2, neither the id at its place (1) nor -100"),
        ({"messages": CHAT, "tools": ["x"]}, "tools: is not a list of objects"),
    ],
)
def test_malformed_rows_are_named(value: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        sample(value)
    assert str(caught.value).startswith(f"f:7: {message}")


def converted(value: Any, to: Format) -> dict[str, Any]:
    return next(convert([Row(value, "f:7")], to))


CHATS: dict[Format, dict[str, Any]] = {
    Format.MESSAGES: {"messages": CHAT},
    Format.SHAREGPT: {"conversations": SHAREGPT},
    Format.ALPACA: ALPACA,
}


@pytest.mark.parametrize("to", list(CHATS))
@pytest.mark.parametrize("source", list(CHATS))
def test_chats_convert_into_each_other(source: Format, to: Format) -> None:
    assert converted({**CHATS[source], "id": 7}, to) == {**CHATS[to], "id": 7}


def test_tool_calls_convert_both_ways() -> None:
    ours, theirs = {"messages": CALLING, "tools": TOOLS}, {"conversations": SHAREGPT_CALLING, "tools": TOOLS}
    assert converted(ours, Format.SHAREGPT) == theirs
    assert converted(theirs, Format.MESSAGES) == ours


def test_prompt_completion_both_ways() -> None:
    one = [user("a"), assistant("b")]
    assert converted({"prompt": "a", "completion": "b"}, Format.MESSAGES) == {"messages": one}
    assert converted({"messages": one}, Format.PROMPT_COMPLETION) == {"prompt": one[:1], "completion": one[1:]}
    flagged = {"messages": [user("a"), assistant("b", train=False), user("c"), assistant("d")]}
    split = {"prompt": CHAT[1:4], "completion": CHAT[4:]}
    assert converted(split, Format.MESSAGES) == flagged
    assert converted(flagged, Format.PROMPT_COMPLETION) == split
    assert converted("a text", Format.TEXT) == {"text": "a text"}


@pytest.mark.parametrize(
    ("value", "to", "reason"),
    [
        ("a", Format.MESSAGES, "nothing says who wrote what"),
        ({"messages": CHAT}, Format.TEXT, "a chat template would have to write it"),
        ({"prompt": "a", "completion": "b"}, Format.TEXT, "where the prompt ends"),
        ({"messages": CHAT}, Format.PROMPT_COMPLETION, "it is not its last message alone that is learned"),
        ({"messages": CHAT}, Format.TOKENS, "takes a tokenizer"),
        ({"input_ids": [1]}, Format.TEXT, "takes a tokenizer"),
        ({"messages": [user("a"), user("b")]}, Format.ALPACA, "not question and answer throughout"),
        ({"messages": [SYSTEM]}, Format.ALPACA, "not question and answer throughout"),
        ({"messages": CALLING, "tools": TOOLS}, Format.ALPACA, "no place for tools"),
        ({"messages": [user("a"), assistant("b", train=False)]}, Format.ALPACA, "not to be learned"),
        ({"messages": [user("a"), assistant("b", reasoning="hm")]}, Format.SHAREGPT, "a message's reasoning"),
        ({"messages": [user("a"), {**CALLING[1], "content": "x"}]}, Format.SHAREGPT, "words beside a function call"),
        ({"messages": [{"role": "developer", "content": "x"}]}, Format.SHAREGPT, "the role 'developer'"),
        ({"messages": CHAT[1:3], "prompt": "a"}, Format.PROMPT_COMPLETION, "its own 'prompt' would be written over"),
    ],
)
def test_what_would_lose_something_is_refused(value: Any, to: Format, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        converted(value, to)
    assert str(caught.value).startswith("f:7: ")
    assert reason in str(caught.value)
