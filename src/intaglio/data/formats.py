"""The formats that rows of training data come in, told by their keys, and what those to learn from become: a sample.

| format | keys | becomes |
|---|---|---|
| text | `text`, or a bare text | a text |
| messages | `messages` (or `conversations` with role and content), `tools`? | a chat |
| sharegpt | `conversations` (or `messages`) with from and value, `system`?, `tools`? | a chat |
| prompt_completion | `prompt`, `completion`: two texts, or two lists of messages, `tools`? | a completion, or a chat |
| alpaca | `instruction`, `output`, `input`?, `system`?, `history`? | a chat: instruction, newline and input are asked |
| tokens | `input_ids`, `labels`?, `attention_mask`? | token ids, with a mask where there are labels |
| preference, ranked, unpaired, prompt | see `preferences` | no sample: they compare answers, or have none |

Where a row has the keys of several, the first in `KEYS` counts: data sets often keep a rendered `text` beside. A
`label` makes a judged answer of prompt and completion only if it is true or false.

Lists may be written as JSON in a text, as CSV needs it. A message may have `train` (or OpenAI's `weight`, 0 or 1).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Any, Final, Literal

from intaglio.data.fields import blamed_on, listed, read_list, read_string, tools_of, truth_at, turns_of
from intaglio.data.readers import Row
from intaglio.data.turns import flagged_messages, messages_of_sharegpt
from intaglio.errors import UserError
from intaglio.text.messages import Message

__all__ = ["COMPARED", "KEYS", "Format", "Sample", "detect", "to_sample"]


class Format(StrEnum):
    """How a row of training data is laid out; see the table above."""

    TEXT = "text"
    MESSAGES = "messages"
    PROMPT_COMPLETION = "prompt_completion"
    ALPACA = "alpaca"
    SHAREGPT = "sharegpt"
    TOKENS = "tokens"
    PREFERENCE = "preference"
    RANKED = "ranked"
    UNPAIRED = "unpaired"
    PROMPT = "prompt"


KEYS: Final[dict[Format, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    Format.TOKENS: (("input_ids",), ("labels", "attention_mask")),
    Format.MESSAGES: (("messages",), ("tools",)),
    Format.SHAREGPT: (("conversations",), ("system", "tools")),
    Format.UNPAIRED: (("prompt", "completion", "label"), ("tools",)),
    Format.PROMPT_COMPLETION: (("prompt", "completion"), ("tools",)),
    Format.ALPACA: (("instruction", "output"), ("input", "system", "history")),
    Format.PREFERENCE: (("chosen", "rejected"), ("prompt", "margin", "weight", "tools")),
    Format.RANKED: (("prompt", "answers"), ("scores", "ranks", "tools")),
    Format.TEXT: (("text",), ()),
    Format.PROMPT: (("prompt",), ("tools",)),
}
"""For each format the keys a row must have and those it may have, in the order in which they are looked for."""

COMPARED: Final = frozenset({Format.PREFERENCE, Format.RANKED, Format.UNPAIRED, Format.PROMPT})
"""The formats that are no samples."""


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
    turns = listed(row.value.get("conversations"))
    if turns is not None and "messages" not in given:
        return Format.SHAREGPT if _has_from(turns) else Format.MESSAGES
    if truth_at(row.value.get("label")) is None:
        given.discard("label")
    for format, (needed, _) in KEYS.items():
        if given.issuperset(needed):
            from_value = format is Format.MESSAGES and _has_from(listed(row.value["messages"]))
            return Format.SHAREGPT if from_value else format
    raise _no_format(row, given)


def to_sample(row: Row, format: Format) -> Sample:
    """What a row of that format says.

    Raises:
        UserError: a key is missing or its value is not what the format wants, or there is not one answer to learn
            from; names the row and the key.
    """
    value = {"text": row.value} if isinstance(row.value, str) else row.value
    with blamed_on(row.where):
        return replace(_READERS[format](value), where=row.where)


def _no_sample(what: str, mend: str) -> Callable[[Mapping[str, Any]], Sample]:
    def refuse(value: Mapping[str, Any]) -> Sample:
        raise UserError(f"{what} (keys: {', '.join(value)})", mend=mend)

    return refuse


def _text(value: Mapping[str, Any]) -> Sample:
    return Sample("text", "", text=read_string(value, "text"))


def _messages(value: Mapping[str, Any]) -> Sample:
    key = "messages" if "messages" in value else "conversations"
    return Sample("chat", "", messages=flagged_messages(read_list(value, key), key), tools=tools_of(value))


def _sharegpt(value: Mapping[str, Any]) -> Sample:
    key = "conversations" if value.get("conversations") is not None else "messages"
    head = [{"role": "system", "content": system}] if (system := read_string(value, "system", "")) else []
    turns = [*head, *messages_of_sharegpt(read_list(value, key), key)]
    return Sample("chat", "", messages=flagged_messages(turns, key), tools=tools_of(value))


def _prompt_completion(value: Mapping[str, Any]) -> Sample:
    sides = [turns_of(value.get(key)) for key in ("prompt", "completion")]
    if sides[0] is None or sides[1] is None:
        if sides != [None, None]:
            raise UserError("one is a list of messages, the other is not", where="prompt and completion")
        prompt, completion = read_string(value, "prompt"), read_string(value, "completion")
        return Sample("completion", "", prompt=prompt, completion=completion)
    given, wanted = flagged_messages(sides[0], "prompt"), flagged_messages(sides[1], "completion")
    return Sample("chat", "", messages=given + wanted, prompt=given, completion=wanted, tools=tools_of(value))


def _alpaca(value: Mapping[str, Any]) -> Sample:
    more = read_string(value, "input", "")
    question = read_string(value, "instruction") + (f"\n{more}" if more else "")
    turns = [(question, read_string(value, "output"))]
    if value.get("history"):
        turns = [*_history(value), *turns]
    system = read_string(value, "system", "")
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for asked, answered in turns:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return Sample("chat", "", messages=tuple(messages))


def _history(value: Mapping[str, Any]) -> list[tuple[str, str]]:
    turns = read_list(value, "history")
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
    numbers = read_list(value, key)
    if not all(type(number) is int for number in numbers):
        raise UserError("is not a list of whole numbers", where=key)
    if length is not None and len(numbers) != length:
        raise UserError(f"has {len(numbers)} entries where input_ids has {length}", where=key)
    return numbers


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


def _closeness(needed: Sequence[str], given: set[str]) -> tuple[int, float]:
    """How many of `needed` are there, and how much of it where a misspelt key counts in part."""
    best = [max((SequenceMatcher(None, key, one).ratio() for one in given), default=0.0) for key in needed]
    return len(given & set(needed)), sum(best) / len(best)


_READERS: Final[dict[Format, Callable[[Mapping[str, Any]], Sample]]] = {
    Format.TEXT: _text,
    Format.MESSAGES: _messages,
    Format.SHAREGPT: _sharegpt,
    Format.PROMPT_COMPLETION: _prompt_completion,
    Format.ALPACA: _alpaca,
    Format.TOKENS: _tokens,
    Format.PREFERENCE: _no_sample("compares two answers", "the objectives dpo, orpo and reward learn from such rows"),
    Format.RANKED: _no_sample("ranks answers", "the objectives dpo, orpo and reward learn from such rows"),
    Format.UNPAIRED: _no_sample(
        "judges an answer", "the objective kto learns from such rows; without label it is learned"
    ),
    Format.PROMPT: _no_sample("has a prompt and no completion", "the objectives ppo and grpo need no more"),
}
