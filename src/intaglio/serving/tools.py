"""Function calls in the model's text: how each family of templates writes them, and how they are found while they come.

Two forms are in use. Hermes and Qwen put a JSON object with `name` and `arguments` between `<tool_call>` and
`</tool_call>`, with text before it if they like. Llama 3 answers with nothing but objects with `name` and `parameters`,
several being separated by `;`. Which one a model was taught is read off its template: it writes earlier calls that way.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import from_json

from intaglio.engine.sampling_params import Structured
from intaglio.errors import UserError
from intaglio.serving.protocol.chat import ToolBody
from intaglio.serving.protocol.sampling import schema_text
from intaglio.text.chat import ChatTemplate
from intaglio.text.tokenizer import Tokenizer

__all__ = [
    "BareCalls",
    "Call",
    "ForcedCall",
    "NoCalls",
    "TaggedCalls",
    "ToolParser",
    "forced_shape",
    "has_special_tags",
    "parser_of",
]

_OPENS, _CLOSES = "<tool_call>", "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"
_PROBE = "probe_of_the_template"


@dataclass(frozen=True)
class Call:
    """A function the model calls; `arguments` is a JSON object."""

    name: str
    arguments: str


class ToolParser(Protocol):
    """Takes an answer's text as it comes and gives text and calls as soon as it is sure of them."""

    def add(self, text: str) -> list[str | Call]:
        """What is sure after `text`."""

    def finish(self) -> list[str | Call]:
        """The rest. What looked like a call and is none is text."""


class NoCalls:
    """All is text."""

    def add(self, text: str) -> list[str | Call]:
        """See `ToolParser`."""
        return [text]

    def finish(self) -> list[str | Call]:
        """See `ToolParser`."""
        return []


class TaggedCalls:
    """The form of Hermes and Qwen. White space around a call is no text."""

    def __init__(self) -> None:
        self._held = ""
        self._inside = False
        self._called = False

    def add(self, text: str) -> list[str | Call]:
        """See `ToolParser`."""
        self._held += text
        pieces: list[str | Call] = []
        while (found := self._next()) is not None:
            pieces += [found] if found else []
        return pieces

    def finish(self) -> list[str | Call]:
        """See `ToolParser`; a call whose closing tag was left out counts if it is whole."""
        rest, self._held = self._held, ""
        if self._inside:
            return [_call(rest, "arguments") or _OPENS + rest]
        return [] if self._called and not rest.strip() else [rest]

    def _next(self) -> str | Call | None:
        """The next piece, or None if more must come first."""
        if self._inside:
            return self._inner()
        before, tag, after = self._held.partition(_OPENS)
        if tag:
            self._held, self._inside = after, True
            return self._trimmed(before.rstrip())
        kept = _beginning(self._held, _OPENS)
        sure = self._held[: len(self._held) - kept].rstrip()
        self._held = self._held[len(sure) :]
        return self._trimmed(sure) or None

    def _inner(self) -> str | Call | None:
        inner, tag, after = self._held.partition(_CLOSES)
        if not tag:
            return None
        self._held, self._inside, self._called = after, False, True
        return _call(inner, "arguments") or _OPENS + inner + _CLOSES

    def _trimmed(self, text: str) -> str:
        """Text behind a call begins with no line break."""
        return text.lstrip() if self._called else text


class BareCalls:
    """The form of Llama 3. An answer that begins like an object can only be judged when it is over."""

    def __init__(self) -> None:
        self._held = ""
        self._is_text = False

    def add(self, text: str) -> list[str | Call]:
        """See `ToolParser`."""
        self._held += text
        begins = self._held.lstrip()
        self._is_text = self._is_text or not (_PYTHON_TAG.startswith(begins[: len(_PYTHON_TAG)]) or begins[0] == "{")
        return self._release() if self._is_text else []

    def finish(self) -> list[str | Call]:
        """See `ToolParser`."""
        calls = _calls(self._held.strip().removeprefix(_PYTHON_TAG))
        return [*calls] if calls else self._release()

    def _release(self) -> list[str | Call]:
        text, self._held = self._held, ""
        return [text] if text else []


class ForcedCall:
    """An answer that can be nothing but a call (see `forced_shape`).

    Args:
        name: the function, where there is no choice; the text is then its arguments.
    """

    def __init__(self, name: str | None) -> None:
        self._name = name
        self._held = ""

    def add(self, text: str) -> list[str | Call]:
        """See `ToolParser`."""
        self._held += text
        return []

    def finish(self) -> list[str | Call]:
        """See `ToolParser`; arguments that were cut off are given as they are, as OpenAI does."""
        if self._name is not None:
            return [Call(self._name, self._held)]
        return [_call(self._held, "arguments") or self._held]


def parser_of(template: ChatTemplate) -> Callable[[], ToolParser]:
    """How calls are written by the models that `template` is for.

    Raises:
        UserError: it does not show tools to the model, or writes calls in a third form.
    """
    tool = {"type": "function", "function": {"name": _PROBE, "description": "", "parameters": {"type": "object"}}}
    asked = {"role": "user", "content": "?"}
    call = {"type": "function", "id": "call00000", "function": {"name": _PROBE, "arguments": {}}}
    if _PROBE not in template.render([asked], tools=[tool]):
        raise UserError(
            "the chat template has no place for tools",
            where="tools",
            mend="serve it with one that has (`--chat-template`)",
        )
    answered = {"role": "assistant", "content": "", "tool_calls": [call]}
    written = template.render([asked, answered])
    if _OPENS in written:
        return TaggedCalls
    if '"name"' not in written or '"parameters"' not in written:
        raise UserError("the chat template writes calls in a form that is not read: neither Qwen's nor Llama 3's")
    return BareCalls


def has_special_tags(tokenizer: Tokenizer) -> bool:
    """Whether the tags around a call are special tokens, which would be no text."""
    return tokenizer.token_id(_OPENS) in tokenizer.special_token_ids


def forced_shape(tools: Sequence[ToolBody]) -> tuple[Structured, Callable[[], ToolParser]]:
    """The shape of an answer that calls one of `tools`, and what reads it.

    Of a single tool only the arguments are made; else an object with its name and arguments. A schema's references are
    to its own definitions, so each tool's are kept apart.
    """
    if len(tools) == 1:
        function = tools[0].function
        schema: dict[str, Any] = function.parameters or {"type": "object", "properties": {}}
        return _shape(schema), lambda: ForcedCall(function.name)
    definitions: dict[str, Any] = {}
    choices = []
    for index, tool in enumerate(tools):
        own = json.loads(json.dumps(tool.function.parameters or {}).replace('"#/$defs/', f'"#/$defs/{index}.'))
        definitions |= {f"{index}.{name}": value for name, value in own.pop("$defs", {}).items()}
        choices.append(_object({"name": {"const": tool.function.name}, "arguments": {"type": "object", **own}}))
    return _shape({"anyOf": choices, "$defs": definitions}), lambda: ForcedCall(None)


def _shape(schema: dict[str, Any]) -> Structured:
    return Structured(kind="json_schema", value=schema_text(schema))


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def _beginning(text: str, tag: str) -> int:
    """The length of the longest end of `text` with which `tag` begins."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if tag.startswith(text[-n:])), 0)


def _calls(text: str) -> list[Call]:
    """The calls that `text` consists of; none if anything else is in it."""
    calls = [_call(part, "parameters") for part in _parts(text)]
    return [call for call in calls if call is not None] if all(calls) else []


def _parts(text: str) -> Iterator[str]:
    """The objects of `text` between semicolons, of which those inside strings are none."""
    decoder, start = json.JSONDecoder(), 0
    while start < len(text):
        try:
            end = decoder.raw_decode(text, start)[1]
        except (ValueError, RecursionError):
            end = len(text)
        yield text[start:end]
        while end < len(text) and (text[end] == ";" or text[end].isspace()):
            end += 1
        start = end


def _call(text: str, key: str) -> Call | None:
    """The call that an object in JSON is, or None; its arguments are under `key`, or where the other form has them."""
    try:
        value = from_json(text.strip(), allow_inf_nan=False)
    except ValueError:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get(key, value.get("arguments", value.get("parameters", {})))
    whole = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return Call(value["name"], whole)
