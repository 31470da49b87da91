"""The one rendering of a chat: messages to text, ids, and the mask of what the assistant wrote.

Training, generation and evaluation all come through here, so that they see the same ids. The mask comes from
places in the text, never from comparing ids:

- Where the template marks it with `{% generation %}`, the assistant wrote what stands between the marks.
- Elsewhere the conversation is rendered prefix by prefix. The assistant wrote what follows the generation prompt, up to
  and including the special token that ends its turn; what a template puts after that token (a newline, mostly) it
  did not write. If the whole rendering does not begin with each of those prefixes, there is no telling, and the mask
  is refused.
- A token belongs to the assistant if at least one of its characters does. So each character the assistant wrote is
  supervised, and a token that straddles the border is supervised whole. A prompt rendered for generation has no such
  token, which is why a template should not put the border inside a word; ours do not.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from intaglio.errors import UserError
from intaglio.text.jinja import ChatTemplate, Conversation
from intaglio.text.messages import Message, check_messages
from intaglio.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Rendered", "chat_template_of", "chat_template_source", "render_chat"]

_NO_PREFIX = "cannot tell what the assistant wrote in messages[{index}]: {reason}"
_ADD_MARKS = "put {% generation %} and {% endgeneration %} around it in the template"


@dataclass(frozen=True)
class Rendered:
    """A conversation as a model reads it.

    Attributes:
        text: what the template wrote.
        ids: its token ids, with exactly one BOS in front where the tokenizer or the template has one.
        offsets: for each id the `(start, end)` characters of `text` it came from; `(0, 0)` for a BOS that was added.
    """

    text: str
    ids: list[int]
    offsets: list[tuple[int, int]]
    _chat: "_Chat" = field(repr=False)
    _added: int

    @cached_property
    def assistant_spans(self) -> list[tuple[int, int]]:
        """The `(start, end)` characters of `text` that the assistant wrote, in order.

        Found when first asked for: a prompt needs none, and not every template lets them be found.

        Raises:
            UserError: the template neither marks them nor renders each beginning of the chat as a prefix of it.
        """
        return self._chat.assistant_spans()

    @cached_property
    def assistant_mask(self) -> list[bool]:
        """For each id whether the assistant wrote it (at least one character of it).

        Raises:
            UserError: as `assistant_spans`.
        """
        return self.mask(self.assistant_spans)

    def written_after(self, start: int, first: int) -> list[tuple[int, int]]:
        """As `assistant_spans`, of what stands after character `start`, where message `first` begins to be written.

        A single answer there needs no telling apart: it goes to the end of its turn, whatever the template makes of
        the messages before it.

        Raises:
            UserError: as `assistant_spans`.
        """
        return self._chat.written_after(start, first)

    def mask(self, spans: Sequence[tuple[int, int]]) -> list[bool]:
        """For each id whether at least one of its characters is in one of `spans`, `(start, end)` in order."""
        return [False] * self._added + _overlaps(self.offsets[self._added :], spans)


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = False,
    template: ChatTemplate | None = None,
    **variables: Any,
) -> Rendered:
    """Renders a conversation to text and ids; the mask of the assistant's tokens is worked out when asked for.

    Args:
        tokenizer: gives ids, and the template unless there is another.
        messages: see `check_messages`.
        tools: JSON schemas of functions the assistant may call.
        add_generation_prompt: whether to end with what comes before an answer of the assistant.
        template: instead of the tokenizer's own.
        variables: anything else the template reads (`enable_thinking`, say).

    Raises:
        UserError: a malformed message, no template, or one that fails.
    """
    check_messages(messages)
    template = template or chat_template_of(tokenizer, tools)
    conversation = template.conversation(messages, tools=tools, **variables)
    chat = _Chat(tokenizer, template, messages, conversation, add_generation_prompt)
    encoded = tokenizer.encode_with_offsets(chat.text)
    ids, offsets, added = _with_one_bos(tokenizer, encoded.ids, encoded.offsets)
    return Rendered(chat.text, ids, offsets, chat, added)


def chat_template_of(tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]] | None = None) -> ChatTemplate:
    """The tokenizer's own chat template; the one named `tool_use` where there are tools and it has one.

    Raises:
        UserError: it has none.
    """
    return ChatTemplate(
        chat_template_source(tokenizer, tools), tokenizer.special_tokens, name="the tokenizer's chat template"
    )


def chat_template_source(tokenizer: Tokenizer, tools: Sequence[Mapping[str, Any]] | None = None) -> str:
    """The Jinja source of the same.

    Raises:
        UserError: it has none.
    """
    name = "tool_use" if tools is not None and "tool_use" in tokenizer.chat_templates else "default"
    source = tokenizer.chat_templates.get(name)
    if source is None:
        known = f" (only {', '.join(sorted(tokenizer.chat_templates))})" if tokenizer.chat_templates else ""
        raise UserError(
            f"the tokenizer has no chat template{known}",
            mend="it is a base model's: take an instruct model, or give it one with `intaglio template apply`",
        )
    return source


@dataclass(frozen=True)
class _Chat:
    """One conversation and all that decides how it is rendered."""

    tokenizer: Tokenizer
    template: ChatTemplate
    messages: Sequence[Message]
    conversation: Conversation
    add_generation_prompt: bool

    @property
    def text(self) -> str:
        return self.conversation.text(add_generation_prompt=self.add_generation_prompt)

    def assistant_spans(self) -> list[tuple[int, int]]:
        if self.template.has_generation_marks:
            return self.conversation.marked(self.add_generation_prompt)
        indices = [i for i, message in enumerate(self.messages) if message["role"] == "assistant"]
        return [self.span_by_prefixes(index) for index in indices]

    def written_after(self, start: int, first: int) -> list[tuple[int, int]]:
        if self.template.has_generation_marks:
            return [(max(begin, start), end) for begin, end in self.assistant_spans() if end > start]
        indices = [i for i, message in enumerate(self.messages) if message["role"] == "assistant" and i >= first]
        if indices == [first] and first == len(self.messages) - 1:
            return [(start, self.end_of_turn(self.text, start))]
        return [self.span_by_prefixes(index) for index in indices]

    def span_by_prefixes(self, index: int) -> tuple[int, int]:
        """From the end of the generation prompt before message `index` to the end of that message's turn."""
        prefix = self.conversation.text
        try:
            bare, prompt, turn = prefix(index), prefix(index, True), prefix(index + 1)
        except UserError as error:
            raise self.no_telling(index, f"rendering the messages before it fails ({error.what})") from error
        if not (prompt.startswith(bare) and turn.startswith(prompt) and self.text.startswith(turn)):
            raise self.no_telling(index, "the messages up to it are rendered differently when others follow")
        return len(prompt), self.end_of_turn(turn, len(prompt))

    def no_telling(self, index: int, reason: str) -> UserError:
        what = _NO_PREFIX.format(index=index, reason=reason)
        return UserError(what, where=self.template.name, mend=_ADD_MARKS)

    def end_of_turn(self, turn: str, start: int) -> int:
        """Past the special token that ends the turn, if only white space follows it; else the turn's own end."""
        written = turn[start:]
        stripped = written.rstrip()
        return start + len(stripped) if stripped.endswith(self.special_tokens) else len(turn)

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        return tuple(filter(None, map(self.tokenizer.token, self.tokenizer.special_token_ids)))


def _with_one_bos(
    tokenizer: Tokenizer, ids: list[int], offsets: list[tuple[int, int]]
) -> tuple[list[int], list[tuple[int, int]], int]:
    """One BOS, whether the template wrote it, the tokenizer would add it, or both; and how many were added here."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return ids, offsets, 0
    if ids[:1] != [bos]:
        return ([bos, *ids], [(0, 0), *offsets], 1) if tokenizer.adds_bos else (ids, offsets, 0)
    while ids[1:2] == [bos]:
        ids, offsets = ids[1:], offsets[1:]
    return ids, offsets, 0


def _overlaps(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> list[bool]:
    """For each stretch whether it shares a character with one of `spans`; both are in order. An empty one has one."""
    shared = [False] * len(offsets)
    for start, end in spans:
        first = bisect_right(offsets, start, key=lambda stretch: max(stretch[1], stretch[0] + 1))
        last = bisect_left(offsets, end, lo=first, key=lambda stretch: stretch[0])
        shared[first:last] = [True] * (last - first)
    return shared
