"""Chat templates: Jinja, in a sandbox, with the surroundings Hugging Face templates are written for.

What a template may use is what transformers' renderer gives it: blocks trimmed, `break` and `continue`,
`raise_exception`, `strftime_now`, a `tojson` that leaves HTML and Unicode alone, `dict`, `namespace`, and
`{% generation %} ... {% endgeneration %}` around what the assistant writes.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from intaglio.errors import UserError

__all__ = ["ChatTemplate", "Conversation"]

_MARKS = "generation marks"  # has a space, so that no template can name it
_LONGEST = 1_000_000  # characters or items one `*` may make, and bits of one `**`


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: Jinja.
        special_tokens: variables such as `bos_token` and `eos_token`.
        name: what errors call it.

    Raises:
        UserError: the source is not valid Jinja.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, *, name: str = "chat template"
    ) -> None:
        self.name = name
        self._special_tokens = dict(special_tokens or {})
        with self._blamed():
            self._compiled = _compile(source)
        self.has_generation_marks = re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", source) is not None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = False,
        **variables: Any,
    ) -> str:
        """The text of a conversation, equal to that of transformers' `apply_chat_template`.

        Args:
            messages: each with a `role` and a `content` (see `intaglio.text.messages.check_messages`).
            tools: JSON schemas of functions the assistant may call.
            add_generation_prompt: whether to end with what comes before an answer of the assistant.
            variables: anything else the template reads; comes before special tokens of the same name.

        Raises:
            UserError: the template raised, failed or tried to leave the sandbox; names it and the reason.
        """
        return self.conversation(messages, tools=tools, **variables).text(add_generation_prompt=add_generation_prompt)

    def conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> "Conversation":
        """The same, to be rendered several times (see `render`).

        Raises:
            UserError: something that is no JSON value.
        """
        known = {"messages": [_without_gaps(message) for message in messages], "tools": tools}
        everything = _plain({"documents": None, **self._special_tokens, **variables, **known})
        return Conversation(self, everything)

    def write(self, known: Mapping[str, Any]) -> str:
        """What the template makes of its variables, which are JSON values; none of them can be changed by it.

        Raises:
            UserError: as `render`.
        """
        with self._blamed():
            return self._compiled.render(known)

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Whatever goes wrong inside is the template's fault, and it is code that came with a model."""
        try:
            yield
        except jinja2.TemplateSyntaxError as error:
            raise UserError(f"{error.message} (line {error.lineno})", where=self.name) from error
        except jinja2.exceptions.SecurityError as error:
            raise UserError(f"tries to leave the sandbox: {error}", where=self.name) from error
        except jinja2.TemplateError as error:
            raise UserError(str(error) or type(error).__name__, where=self.name) from error
        except Exception as error:
            raise UserError(f"fails with {type(error).__name__}: {error}", where=self.name) from error


class Conversation:
    """Messages made ready for a template: rendering all of them or the first few costs the template's own time.

    Args:
        template: writes them.
        known: all that the template may read, as JSON values; `messages` among it.
    """

    def __init__(self, template: ChatTemplate, known: Mapping[str, Any]) -> None:
        self._template, self._known = template, known
        self._texts: dict[tuple[int, bool], str] = {}

    def text(self, length: int | None = None, add_generation_prompt: bool = False) -> str:
        """The text of the first `length` messages (None: of all), with what comes before an answer if asked for.

        Raises:
            UserError: as `ChatTemplate.render`.
        """
        messages = self._known["messages"][:length]
        key = len(messages), add_generation_prompt
        if key not in self._texts:
            self._texts[key] = self._write(messages=messages, add_generation_prompt=add_generation_prompt)
        return self._texts[key]

    def marked(self, add_generation_prompt: bool = False) -> list[tuple[int, int]]:
        """The `(start, end)` characters of `text` inside each `{% generation %}` block, in order.

        Raises:
            UserError: as `text`; or a block's text is changed after it is written, so that its place is lost.
        """
        text = self.text(add_generation_prompt=add_generation_prompt)
        opens, closes = _unused_pair(text)
        marks = {_MARKS: [opens, closes]}
        marked = self._write(add_generation_prompt=add_generation_prompt, **marks)
        if marked.replace(opens, "").replace(closes, "") != text:
            what = "the text of a {% generation %} block is changed after it is written"
            raise UserError(what, where=self._template.name)
        return _spans(marked, opens, closes)

    def _write(self, **more: Any) -> str:
        return self._template.write({**self._known, **more})


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, in which a product or a power cannot fill the memory either."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _refuse_beyond(max(_length(left) * _size(right), _length(right) * _size(left)))
        elif isinstance(left, int) and isinstance(right, int):
            _refuse_beyond(left.bit_length() * right)
        return super().call_binop(context, operator, left, right)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, list, tuple)) else 0


def _size(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _refuse_beyond(size: int) -> None:
    if size > _LONGEST:
        raise jinja2.exceptions.SecurityError(f"a product or power of size {size}")


class _Generation(Extension):
    """`{% generation %}`: its body as it is, between marks where `Conversation.marked` asks for them."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own way to declare it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_mark", [nodes.ContextReference()])
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _mark(self, context: Context, caller: Callable[[], str]) -> str:
        opens, closes = context.get(_MARKS, ("", ""))
        return f"{opens}{caller()}{closes}"


class _Dict:
    """`dict` for templates: calls only, so that no attribute of the real one can be reached."""

    def __call__(self, *args: Any, **entries: Any) -> dict[Any, Any]:
        return dict(*args, **entries)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(jinja2.utils.Namespace):
    """`namespace` for templates: no attribute may begin with an underscore."""

    def __init__(*args: Any, **entries: Any) -> None:  # no `self` in the signature: it may be an entry
        attributes = dict(*args[1:], **entries)
        for name in attributes:
            _refuse_hidden(name)
        jinja2.utils.Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_hidden(name)
        super().__setitem__(name, value)


def _refuse_hidden(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"namespace attribute {name!r} begins with an underscore")


@lru_cache(maxsize=64)
def _compile(source: str) -> jinja2.Template:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(source)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _without_gaps(message: Mapping[str, Any]) -> dict[str, Any]:
    """Keys without a value are left out, and reasoning is under the two names that templates look for."""
    given = {key: value for key, value in message.items() if value is not None}
    names = [name for name in ("reasoning_content", "thinking", "reasoning") if name in given]
    if not names:
        return given
    reasoning = given[names[0]]
    return {"thinking": reasoning, **given, "reasoning_content": reasoning}


def _plain(value: Any) -> Any:
    """`value` rebuilt from JSON types: a template must meet no object with methods of its own."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise UserError(f"a chat is made of JSON values, and {type(value).__name__} is none")


def _unused_pair(text: str) -> tuple[str, str]:
    """Two characters that do not occur in `text`, from those Unicode sets aside for uses like this one."""
    unused = [chr(code) for code in range(0xFDD0, 0xFDF0) if chr(code) not in text]
    assert len(unused) >= 2, "a text that uses 31 of Unicode's 32 noncharacters"
    return unused[0], unused[1]


def _spans(marked: str, opens: str, closes: str) -> list[tuple[int, int]]:
    """Outermost marked stretches, in characters of the text without marks; empty ones are left out."""
    spans, depth, start, position = [], 0, 0, 0
    for piece in re.split(f"([{opens}{closes}])", marked):
        if piece == opens:
            start = position if depth == 0 else start
            depth += 1
        elif piece == closes:
            depth -= 1
            if depth == 0 and position > start:
                spans.append((start, position))
        else:
            position += len(piece)
    return spans
