"""A prompt and the answers that go on from it, as token ids: the prompt once.

- Texts: prompt and answers are encoded apart, as a completion is (see `examples`), each answer ended by one EOS.
- Chats: prompt and answer are rendered together, and `prompt` is what the rendered prompt and all of its answers begin
  with; so prompt and answer put together are exactly the ids of the whole, and mostly `prompt` is what the engine is
  given. Where a template writes the prompt otherwise once an answer follows (`<think>` marks, say), or a token reaches
  over the border, the border moves back: the answers then begin with the tokens that differ. That is counted.
- An answer ends with the token that ends its turn; what a template writes after that is no part of it.

Of an answer every token counts but those that others wrote (the user's turns between, what tools say, a header behind
a moved border) and a first token with no prompt before it. The masks say which: by position, never by an id's value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intaglio.data.examples import MaskPolicy, ended, text_ids
from intaglio.data.preferences import Said, common_length
from intaglio.errors import UserError
from intaglio.text.chat import ChatTemplate, Rendered, render_chat
from intaglio.text.messages import Message
from intaglio.text.tokenizer import Tokenizer

__all__ = ["Forked", "Ids", "Mask", "Side", "fork", "short", "written_out"]

Ids = NDArray[np.int32]
Mask = NDArray[np.bool_]

Side = tuple[Ids, Mask | None]
"""The ids of an answer, and whether each counts; None: all do."""


@dataclass(frozen=True)
class Forked:
    """Ids of a prompt and of what goes on from it.

    Attributes:
        prompt: (P,) int32.
        sides: the answers, in order.
        moved: whether the end of the prompt that a model is given stands in the answers.
    """

    prompt: Ids
    sides: tuple[Side, ...]
    moved: bool = False


def fork(
    prompt: Said,
    sides: Sequence[Said],
    tools: Sequence[Mapping[str, Any]] | None,
    tokenizer: Tokenizer,
    policy: MaskPolicy,
) -> Forked:
    """The ids of a prompt and of its answers: all texts, or all messages.

    Args:
        prompt: what is answered; of messages there is one at least.
        sides: the answers.
        tools: JSON schemas of functions the assistant may call.
        tokenizer: gives the ids.
        policy: how chats are rendered; of what is learned it may say no more than that the answers are.

    Raises:
        UserError: such a policy, no EOS for texts, or a chat that cannot be rendered.
    """
    if policy.supervise not in (None, "completion", "assistant"):
        mend = "leave it out: of an answer that was compared all counts, of its prompt nothing"
        raise UserError(f"supervise={policy.supervise} means nothing for preferences", mend=mend)
    if isinstance(prompt, str):
        forked = _forked_texts(prompt, [side for side in sides if isinstance(side, str)], tokenizer)
    else:
        chats = [side for side in sides if not isinstance(side, str)]
        forked = _forked_chats(prompt, chats, tools, tokenizer, policy.template)
    return forked if len(forked.prompt) else replace(forked, sides=tuple(map(_without_first, forked.sides)))


def _without_first(side: Side) -> Side:
    """Nothing stands before the first token that could tell it."""
    ids, mask = side
    return ids, short(written_out(ids, mask) & (np.arange(len(ids)) > 0))


def _forked_texts(prompt: str, sides: Sequence[str], tokenizer: Tokenizer) -> Forked:
    if tokenizer.eos_token_id is None:
        mend = "give it one in tokenizer_config.json"
        raise UserError("the tokenizer has no EOS, so that nothing says where an answer ends", mend=mend)
    answers = (ended(text_ids(side, tokenizer, begins=False), tokenizer) for side in sides)
    return Forked(
        np.array(text_ids(prompt, tokenizer), dtype=np.int32),
        tuple((np.array(ids, dtype=np.int32), None) for ids in answers),
    )


def _forked_chats(
    prompt: Sequence[Message],
    sides: Sequence[Sequence[Message]],
    tools: Sequence[Mapping[str, Any]] | None,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
) -> Forked:
    wholes = [render_chat(tokenizer, [*prompt, *side], tools, template=template) for side in sides]
    answered = all(side and side[0]["role"] == "assistant" for side in sides)
    asked = render_chat(tokenizer, prompt, tools, answered, template)
    border = common_length([asked.ids, *(whole.ids for whole in wholes)])
    written = [common_length([asked.text, whole.text]) for whole in wholes]
    return Forked(
        np.array(asked.ids[:border], dtype=np.int32),
        tuple(_side(whole, border, start, len(prompt)) for whole, start in zip(wholes, written, strict=True)),
        moved=border < len(asked.ids),
    )


def _side(whole: Rendered, border: int, start: int, first: int) -> Side:
    """The ids from `border` to the last that counts; messages from `first` on, at character `start`, are the answer."""
    mask = np.array(whole.mask(whole.written_after(start, first)), dtype=np.bool_)[border:]
    end = int(np.flatnonzero(mask)[-1]) + 1 if mask.any() else 0
    return np.array(whole.ids[border : border + end], dtype=np.int32), short(mask[:end])


def written_out(ids: Ids, mask: Mask | None) -> Mask:
    """For each of `ids` whether it counts."""
    return np.ones(len(ids), dtype=np.bool_) if mask is None else mask


def short(mask: Mask) -> Mask | None:
    """The same in short."""
    return None if mask.all() else mask
