"""The formats that rows of training data come in, told by their keys, and the one thing all of them become: a sample.

| format | keys | becomes |
|---|---|---|
| text | `text`, or a bare text | a text |
| messages | `messages` (or `conversations` with role and content), `tools`? | a chat |
| sharegpt | `conversations` (or `messages`) with from and value, `system`?, `tools`? | a chat |
| prompt_completion | `prompt`, `completion`: two texts, or two lists of messages, `tools`? | a completion, or a chat |
| alpaca | `instruction`, `output`, `input`?, `system`?, `history`? | a chat: instruction, newline and input are asked |
| tokens | `input_ids`, `labels`?, `attention_mask`? | token ids, with a mask where there are labels |

Where a row has the keys of several, the first in `KEYS` counts: data sets often keep a rendered `text` beside.
Lists may be written as JSON in a text, as CSV needs it. A message may have `train` (or OpenAI's `weight`, 0 or 1).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Any, Final, Literal

from intaglio.data.readers import Row
from intaglio.data.turns import flagged_messages, messages_of_sharegpt
from intaglio.errors import UserError
from intaglio.text.messages import Message

__all__ = ["KEYS", "Format", "Sample", "detect", "to_sample"]


class Format(StrEnum):
    """How a row of training data is laid out; see the table above."""

    TEXT = "text"
    MESSAGES = "messages"
    PROMPT_COMPLETION = "prompt_completion"
    ALPACA = "alpaca"
    SHAREGPT = "sharegpt"
    TOKENS = "tokens"


KEYS: Final[dict[Format, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    Format.TOKENS: (("input_ids",), ("labels", "attention_mask")),
    Format.MESSAGES: (("messages",), ("tools",)),
    Format.SHAREGPT: (("conversations",), ("system", "tools")),
    Format.PROMPT_COMPLETION: (("prompt", "completion"), ("tools",)),
    Format.ALPACA: (("instruction", "output"), ("input", "system", "history")),
    Format.TEXT: (("text",), ()),
}
"""For each format the keys a row must have and those it may have, in the order in which they are looked for."""


@dataclass(frozen=True)
class Sample:
    """One row, ready to become token ids.

    Attributes:
        kind: which of the following counts.
        where: the place of the row.
        text: a document.
        messages: a chat; each message may have `train: false`, which keeps an answer from being learned.
        prompt: a text, or the first of `messages` where the row told them apart.
        completion: a text, or the rest of `messages`.
        ids: token ids, padding taken out.
        labels_mask: for each of `ids` whether it is to be learned; None: all are.
        tools: JSON schemas of functions the assistant may call.
    """

    kind: Literal["text", "chat", "completion", "tokens"]
    where: str
    text: str | None = None
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[Message, ...] | None = None
    completion: str | tuple[Message, ...] | None = None
    ids: tuple[int, ...] = ()
    labels_mask: tuple[bool, ...] | None = None
    tools: tuple[Mapping[str, Any], ...] | None = None


def detect(row: Row) -> Format:
    """The format of a row.

    Raises:
        UserError: it has none; names its keys and the format that is nearest.
    """
    if isinstance(row.value, str):
        return Format.TEXT
    given = {key for key, value in row.value.items() if value is not None}
    turns = _listed(row.value.get("conversations"))
    if turns is not None and "messages" not in given:
        return Format.SHAREGPT if _has_from(turns) else Format.MESSAGES
    for format, (needed, _) in KEYS.items():
        if given.issuperset(needed):
            from_value = format is Format.MESSAGES and _has_from(_listed(row.value["messages"]))
            return Format.SHAREGPT if from_value else format
    raise _no_format(row, given)


def to_sample(row: Row, format: Format) -> Sample:
    """What a row of that format says.

    Raises:
        UserError: a key is missing or its value is not what the format wants; names the row and the key.
    """
    value = {"text": row.value} if isinstance(row.value, str) else row.value
    try:
        return replace(_READERS[format](value), where=row.where)
    except UserError as error:
        place = f"{row.where}: {error.where}" if error.where else row.where
        raise UserError(error.what, where=place, mend=error.mend) from error


def _text(value: Mapping[str, Any]) -> Sample:
    return Sample("text", "", text=_string(value, "text"))


def _messages(value: Mapping[str, Any]) -> Sample:
    key = "messages" if "messages" in value else "conversations"
    return Sample("chat", "", messages=flagged_messages(_list(value, key), key), tools=_tools(value))


def _sharegpt(value: Mapping[str, Any]) -> Sample:
    key = "conversations" if value.get("conversations") is not None else "messages"
    head = [{"role": "system", "content": system}] if (system := _string(value, "system", "")) else []
    turns = [*head, *messages_of_sharegpt(_list(value, key), key)]
    return Sample("chat", "", messages=flagged_messages(turns, key), tools=_tools(value))


def _prompt_completion(value: Mapping[str, Any]) -> Sample:
    sides = [_turns(value.get(key)) for key in ("prompt", "completion")]
    if sides[0] is None or sides[1] is None:
        if sides != [None, None]:
            raise UserError("one is a list of messages, the other is not", where="prompt and completion")
        prompt, completion = _string(value, "prompt"), _string(value, "completion")
        return Sample("completion", "", prompt=prompt, completion=completion)
    given, wanted = flagged_messages(sides[0], "prompt"), flagged_messages(sides[1], "completion")
    return Sample("chat", "", messages=given + wanted, prompt=given, completion=wanted, tools=_tools(value))


def _alpaca(value: Mapping[str, Any]) -> Sample:
    more = _string(value, "input", "")
    question = _string(value, "instruction") + (f"\n{more}" if more else "")
    turns = [(question, _string(value, "output"))]
    if value.get("history"):
        turns = [*_history(value), *turns]
    system = _string(value, "system", "")
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for asked, answered in turns:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return Sample("chat", "", messages=tuple(messages))


def _history(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    turns = _list(value, "history")
    for index, turn in enumerate(turns):
        if not (isinstance(turn, Sequence) and len(turn) == 2 and all(isinstance(text, str) for text in turn)):
            raise UserError("is not a pair of question and answer", where=f"history[{index}]")
    return [(asked, answered) for asked, answered in turns]


def _tokens(value: Mapping[str, Any]) -> Sample:
    ids = _integers(value, "input_ids")
    real = [i != 0 for i in _integers(value, "attention_mask", len(ids))] or [True] * len(ids)
    if any(i < 0 for i in ids):
        raise UserError("has a negative id", where="input_ids")
    labels = _integers(value, "labels", len(ids))
    for place, (token, label) in enumerate(zip(ids, labels, strict=False)):
        if label not in (token, -100):
            what = f"is {label}, neither the id at its place ({token}) nor -100"
            raise UserError(what, where=f"labels[{place}]", mend="labels stand beside their ids; the shift is ours")
    kept = tuple(token for token, on in zip(ids, real, strict=True) if on)
    mask = tuple(label != -100 for label, on in zip(labels, real, strict=False) if on)
    return Sample("tokens", "", ids=kept, labels_mask=mask if labels else None)


def _integers(value: Mapping[str, Any], key: str, length: int | None = None) -> list[int]:
    """The ids under `key`; of `length`, or none at all where one is given and the key is absent."""
    if length is not None and value.get(key) is None:
        return []
    numbers = _list(value, key)
    if not all(type(number) is int for number in numbers):
        raise UserError("is not a list of whole numbers", where=key)
    if length is not None and len(numbers) != length:
        raise UserError(f"has {len(numbers)} entries where input_ids has {length}", where=key)
    return numbers


def _string(value: Mapping[str, Any], key: str, default: str | None = None) -> str:
    text = value.get(key)
    if text is None and default is not None:
        return default
    if not isinstance(text, str):
        raise UserError("is missing" if text is None else f"is {type(text).__name__}, not a text", where=key)
    return text


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    items = _listed(value.get(key))
    if items is None:
        raise UserError(f"is {type(value.get(key)).__name__}, not a list", where=key)
    return items


def _listed(value: Any) -> list[Any] | None:
    """A list, or the one that a text spells as JSON; else None."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return list(value) if isinstance(value, (list, tuple)) else None


def _turns(value: Any) -> list[Any] | None:
    """As `_listed`; but a prompt may well be JSON that is no conversation."""
    turns = _listed(value)
    if isinstance(value, str) and not all(isinstance(turn, Mapping) and "role" in turn for turn in turns or [None]):
        return None
    return turns


def _tools(value: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...] | None:
    if not value.get("tools"):
        return None
    tools = _list(value, "tools")
    if not all(isinstance(tool, Mapping) for tool in tools):
        raise UserError("is not a list of objects", where="tools")
    return tuple(tools) or None


def _has_from(turns: list[Any] | None) -> bool:
    first = turns[0] if turns else None
    return isinstance(first, Mapping) and "from" in first and "role" not in first


def _no_format(row: Row, given: set[str]) -> UserError:
    assert isinstance(row.value, dict)
    names = ", ".join(row.value) or "none"
    format = max(KEYS, key=lambda one: _closeness(KEYS[one][0], given))
    lacks = [key for key in KEYS[format][0] if key not in given]
    mend = f"the nearest is {format}, which needs {' and '.join(KEYS[format][0])}: {', '.join(lacks)} is missing"
    return UserError(f"fits no format (keys: {names})", where=row.where, mend=mend)


def _closeness(needed: Sequence[str], given: set[str]) -> float:
    """How much of `needed` is there, a misspelt key counting in part."""
    best = [max((SequenceMatcher(None, key, one).ratio() for one in given), default=0.0) for key in needed]
    return sum(best) / len(best)


_READERS: Final[dict[Format, Callable[[Mapping[str, Any]], Sample]]] = {
    Format.TEXT: _text,
    Format.MESSAGES: _messages,
    Format.SHAREGPT: _sharegpt,
    Format.PROMPT_COMPLETION: _prompt_completion,
    Format.ALPACA: _alpaca,
    Format.TOKENS: _tokens,
}
