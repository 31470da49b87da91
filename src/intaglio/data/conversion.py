"""Rows from one format to another, where nothing is lost of what a model reads or is taught; else refused.

Keys that belong to no format (an id, a category) go along. Alpaca's instruction and input become one text, as they do
in training; otherwise a row converted back says what it said. Of compared answers tells `preference_conversion`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from intaglio.data.formats import COMPARED, KEYS, Format, Sample, detect, to_sample
from intaglio.data.preference_conversion import LossError, expanded, paired
from intaglio.data.readers import Row, Skipped
from intaglio.data.turns import SHAREGPT_ROLES, text_of
from intaglio.errors import UserError
from intaglio.text.messages import Message

__all__ = ["convert"]

_PLAIN_KEYS = {"role", "content", "train"}


def convert(rows: Iterable[Row], to: Format, left_out: list[Skipped] | None = None) -> Iterator[dict[str, Any]]:
    """The rows in another format; one that compares answers may become several, and several judged answers pairs.

    Args:
        rows: each in a format of its own.
        to: the format wanted.
        left_out: gets the judged answers to whose prompt none was judged otherwise, so that they make no pair.

    Raises:
        UserError: a row fits no format, or would lose something; names the row and what.
    """
    judged: list[Row] = []
    for row in rows:
        format = detect(row)
        if (format, to) == (Format.UNPAIRED, Format.PREFERENCE):
            judged.append(row)
        else:
            yield from _convert(row, format, to)
    yield from paired(judged, [] if left_out is None else left_out)


def _convert(row: Row, format: Format, to: Format) -> Iterator[dict[str, Any]]:
    if isinstance(row.value, str):
        row = Row({"text": row.value}, row.where)
    assert isinstance(row.value, dict)
    try:
        if {format, to} & COMPARED:
            for written in expanded(row, format, to):
                yield written | _carried(row, format, written)
            return
        sample = to_sample(row, format)
        if format is to:
            yield row.value
            return
        written = _written(sample, format, to)
        yield written | _carried(row, format, written)
    except LossError as loss:
        what = f"a {format} row cannot become {to} without loss: {loss}"
        raise UserError(what, where=row.where) from loss


def _written(sample: Sample, format: Format, to: Format) -> dict[str, Any]:
    if sample.kind == "text":
        raise LossError("nothing says who wrote what, or where a prompt ends")
    if sample.kind == "tokens" or to is Format.TOKENS:
        raise LossError("that takes a tokenizer, and its ids fit no other")
    if to is Format.TEXT:
        border = "a chat template would have to write it" if sample.kind == "chat" else "where the prompt ends"
        raise LossError(border)
    return _WRITERS[to](_messages(sample), sample.tools)


def _messages(sample: Sample) -> list[Message]:
    """A completion as a question and its answer; a prompt's own answers stay unlearned."""
    if isinstance(sample.prompt, str):
        return [{"role": "user", "content": sample.prompt}, {"role": "assistant", "content": sample.completion}]
    before = len(sample.prompt or ())
    return [
        {**message, "train": False} if index < before and message["role"] == "assistant" else message
        for index, message in enumerate(sample.messages)
    ]


def _carried(row: Row, format: Format, written: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that the row's format does not use, none of which may mean something else from now on."""
    assert isinstance(row.value, dict)
    used = {"messages", "conversations"} if format in (Format.MESSAGES, Format.SHAREGPT) else set()
    used.update(*KEYS[format])
    carried = {key: value for key, value in row.value.items() if key not in used}
    for key in carried.keys() & written.keys():
        what = f"its own {key!r} would be written over"
        raise UserError(what, where=row.where, mend="rename that key first")
    return carried


def _to_messages(messages: list[Message], tools: Any) -> dict[str, Any]:
    return {"messages": messages, **({"tools": list(tools)} if tools else {})}


def _to_prompt_completion(messages: list[Message], tools: Any) -> dict[str, Any]:
    _only_last_is_learned(messages)
    *prompt, answer = [{key: value for key, value in message.items() if key != "train"} for message in messages]
    return {"prompt": prompt, "completion": [answer], **({"tools": list(tools)} if tools else {})}


def _only_last_is_learned(messages: list[Message]) -> None:
    learned = [i for i, message in enumerate(messages) if message["role"] == "assistant" and message.get("train", True)]
    if learned != [len(messages) - 1]:
        raise LossError("it is not its last message alone that is learned")


def _to_alpaca(messages: list[Message], tools: Any) -> dict[str, Any]:
    if tools:
        raise LossError("there is no place for tools")
    for message in messages:
        _only_text(message)
        if not message.get("train", True):
            raise LossError("there is no place for an answer that is not to be learned")
    system, turns = _system_apart(messages)
    texts = [text_of(message) for message in turns]
    roles = [message["role"] for message in turns]
    if not turns or roles != ["user", "assistant"] * (len(turns) // 2):
        raise LossError("its turns are not question and answer throughout")
    pairs = [texts[i : i + 2] for i in range(0, len(texts) - 2, 2)]
    rest = ({"system": system} if system is not None else {}) | ({"history": pairs} if pairs else {})
    return {"instruction": texts[-2], "input": "", "output": texts[-1], **rest}


def _system_apart(messages: list[Message]) -> tuple[str | None, list[Message]]:
    if messages[0]["role"] != "system":
        return None, messages
    return text_of(messages[0]), messages[1:]


def _to_sharegpt(messages: list[Message], tools: Any) -> dict[str, Any]:
    turns = [_sharegpt_turn(message) for message in messages]
    return {"conversations": turns, **({"tools": list(tools)} if tools else {})}


def _sharegpt_turn(message: Message) -> dict[str, Any]:
    flag = {} if message.get("train", True) else {"train": False}
    if message.get("tool_calls"):
        return {"from": "function_call", "value": _function_calls(message), **flag}
    _only_text(message)
    names = {role: name for name, role in reversed(SHAREGPT_ROLES.items()) if name != "function_call"}
    if message["role"] not in names:
        raise LossError(f"there is no place for the role {message['role']!r}")
    return {"from": names[message["role"]], "value": text_of(message), **flag}


def _function_calls(message: Message) -> str:
    _only_text(message, allowed={*_PLAIN_KEYS, "tool_calls"})
    if text_of(message):
        raise LossError("there is no place for words beside a function call")
    for call in message["tool_calls"]:
        if set(call) - {"type", "function"}:
            raise LossError("there is no place for the id of a function call")
    calls = [call.get("function", call) for call in message["tool_calls"]]
    return json.dumps(calls[0] if len(calls) == 1 else calls, ensure_ascii=False)


def _only_text(message: Message, allowed: set[str] = _PLAIN_KEYS) -> None:
    more = sorted(set(message) - allowed)
    if more:
        raise LossError(f"there is no place for a message's {more[0]}")


_WRITERS: Final[dict[Format, Callable[[list[Message], Any], dict[str, Any]]]] = {
    Format.MESSAGES: _to_messages,
    Format.PROMPT_COMPLETION: _to_prompt_completion,
    Format.ALPACA: _to_alpaca,
    Format.SHAREGPT: _to_sharegpt,
}
