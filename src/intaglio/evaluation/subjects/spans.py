"""A continuation as tokens, told apart from its context as lm-evaluation-harness 0.4.13 does.

There (`TemplateLM._encode_pair` and `loglikelihood`, lm_eval/api/model.py): blanks at the context's end go to the
continuation, both are tokenised as one text, and the continuation is what follows as many tokens as the context alone
has. Without a context the BOS stands in front, or the EOS where there is none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from intaglio.errors import UserError
from intaglio.text.tokenizer import Tokenizer

__all__ = ["Encode", "Span", "encode_pair", "encoder_of", "first_token"]

Encode = Callable[[str, bool], list[int]]
"""Ids of a text, with what the tokenizer adds around one or without."""


@dataclass(frozen=True)
class Span:
    """Tokens of which those from `start` on are looked at; there is one before them at least."""

    ids: list[int]
    start: int

    def last(self, most: int) -> "Span":
        """At most so many tokens of it, the beginning cut off."""
        cut = max(len(self.ids) - most, 0)
        return Span(self.ids[cut:], max(self.start - cut, 1))


def encode_pair(encode: Encode, first: Sequence[int], context: str, continuation: str) -> Span:
    """The tokens of both, and where the continuation begins.

    Args:
        encode: of the model's tokenizer.
        first: what stands before a text without a context: one token.
        context: may be empty.
        continuation: not empty.

    Raises:
        UserError: there is no context, and no token to stand in for it.
    """
    bare = context.rstrip()
    continuation = context[len(bare) :] + continuation
    if not bare:
        ids = encode(continuation, False)
        if not first:
            raise UserError("there is no context, and the tokenizer has no BOS or EOS", where=repr(continuation)[:40])
        whole = ids if ids[:1] == list(first) else [*first, *ids]
        return Span(whole, 1)
    whole, begun = encode(bare + continuation, True), encode(bare, True)
    return Span(whole, max(min(len(begun), len(whole) - 1), 1))


def encoder_of(tokenizer: Tokenizer) -> Encode:
    """The tokenizer's `encode`, which adds no second BOS where one is written already, as in a rendered chat."""

    def encode(text: str, add_special_tokens: bool) -> list[int]:
        bos = tokenizer.bos_token
        return tokenizer.encode(text, add_special_tokens and not (bos and text.startswith(bos)))

    return encode


def first_token(tokenizer: Tokenizer) -> list[int]:
    """The token that stands before a text without a context."""
    own = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    return [] if own is None else [own]
