"""Preferences become examples: a prompt's ids once, and those of the answers (see `branches`), within a length."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from intaglio.data.branches import Ids, Mask, Side, fork, short, written_out
from intaglio.data.examples import Counts, MaskPolicy, OverLong, text_ids
from intaglio.data.fields import blamed_on
from intaglio.data.preferences import Judged, Preference, Prompt, Said
from intaglio.errors import UserError
from intaglio.text.chat import render_chat
from intaglio.text.tokenizer import Tokenizer

__all__ = [
    "CompletionExample",
    "PairExample",
    "PromptExample",
    "encode_judged",
    "encode_preference",
    "encode_prompt",
    "encode_prompts",
    "fitting",
]


@dataclass(frozen=True)
class PairExample:
    """A prompt and two answers as a model reads them.

    Attributes:
        prompt: (P,) int32; may be empty.
        chosen: (C,) int32.
        rejected: (R,) int32.
        where: the place of the row.
        margin: see `Preference`.
        weight: see `Preference`.
        chosen_mask: (C,) bool, the tokens that count; None: all.
        rejected_mask: (R,) bool, likewise.
        border_moved: whether the end of the prompt that a model is given stands in the answers.
    """

    prompt: Ids
    chosen: Ids
    rejected: Ids
    where: str
    margin: float | None = None
    weight: float = 1.0
    chosen_mask: Mask | None = None
    rejected_mask: Mask | None = None
    border_moved: bool = False

    @property
    def completions(self) -> tuple[Ids, Ids]:
        """Chosen and rejected."""
        return self.chosen, self.rejected

    @property
    def masks(self) -> tuple[Mask, Mask]:
        """For both the tokens that count, written out."""
        return written_out(self.chosen, self.chosen_mask), written_out(self.rejected, self.rejected_mask)

    def with_sides(self, sides: Sequence[Side]) -> "PairExample":
        """The same prompt with other answers."""
        (chosen, chosen_mask), (rejected, rejected_mask) = sides
        return replace(self, chosen=chosen, rejected=rejected, chosen_mask=chosen_mask, rejected_mask=rejected_mask)

    def __len__(self) -> int:
        """Tokens, those of the prompt once."""
        return len(self.prompt) + len(self.chosen) + len(self.rejected)


@dataclass(frozen=True)
class CompletionExample:
    """A prompt and an answer as a model reads them, and whether the answer was wanted.

    Attributes:
        prompt: (P,) int32; may be empty.
        completion: (C,) int32.
        label: whether the answer was wanted.
        where: the place of the row.
        completion_mask: (C,) bool, the tokens that count; None: all.
        border_moved: see `PairExample`.
    """

    prompt: Ids
    completion: Ids
    label: bool
    where: str
    completion_mask: Mask | None = None
    border_moved: bool = False

    @property
    def completions(self) -> tuple[Ids]:
        """The one there is."""
        return (self.completion,)

    @property
    def masks(self) -> tuple[Mask]:
        """Its tokens that count, written out."""
        return (written_out(self.completion, self.completion_mask),)

    def with_sides(self, sides: Sequence[Side]) -> "CompletionExample":
        """The same prompt with another answer."""
        ((completion, mask),) = sides
        return replace(self, completion=completion, completion_mask=mask)

    def __len__(self) -> int:
        """Tokens."""
        return len(self.prompt) + len(self.completion)


_Answered = TypeVar("_Answered", PairExample, CompletionExample)


@dataclass(frozen=True)
class PromptExample:
    """A prompt as the engine is given it.

    Attributes:
        prompt: (P,) int32, with what comes before an answer.
        where: the place of the row.
        columns: the rest of the row (the right answer, say), by key.
        source: the prompt as the row has it.
    """

    prompt: Ids
    where: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    source: Said = ""


def encode_preference(preference: Preference, tokenizer: Tokenizer, policy: MaskPolicy) -> PairExample:
    """The ids of a pair, however long.

    Raises:
        UserError: a chat that cannot be rendered, no EOS, or a policy that means nothing here; names the row.
    """
    with blamed_on(preference.where):
        sides = (preference.chosen, preference.rejected)
        forked = fork(preference.prompt, sides, preference.tools, tokenizer, policy)
    (chosen, chosen_mask), (rejected, rejected_mask) = forked.sides
    return PairExample(
        forked.prompt,
        chosen,
        rejected,
        preference.where,
        preference.margin,
        preference.weight,
        chosen_mask,
        rejected_mask,
        forked.moved,
    )


def encode_judged(judged: Judged, tokenizer: Tokenizer, policy: MaskPolicy) -> CompletionExample:
    """The ids of a judged answer, however long.

    Raises:
        UserError: as `encode_preference`.
    """
    with blamed_on(judged.where):
        forked = fork(judged.prompt, (judged.completion,), judged.tools, tokenizer, policy)
    ((completion, mask),) = forked.sides
    return CompletionExample(forked.prompt, completion, judged.label, judged.where, mask, forked.moved)


def encode_prompt(prompt: Prompt, tokenizer: Tokenizer, policy: MaskPolicy) -> PromptExample:
    """The ids of a prompt, with what comes before an answer.

    Raises:
        UserError: a chat that cannot be rendered, or that ends with an answer; names the row.
    """
    with blamed_on(prompt.where):
        if isinstance(prompt.prompt, str):
            ids = text_ids(prompt.prompt, tokenizer)
        else:
            if prompt.prompt[-1]["role"] == "assistant":
                raise UserError("ends with an answer: nothing is left to be answered", where="prompt")
            ids = render_chat(tokenizer, prompt.prompt, prompt.tools, True, policy.template).ids
    return PromptExample(np.array(ids, dtype=np.int32), prompt.where, prompt.columns, prompt.prompt)


def encode_prompts(
    prompts: Iterable[Prompt],
    tokenizer: Tokenizer,
    policy: MaskPolicy,
    counts: Counts,
    max_length: int | None = None,
) -> Iterator[PromptExample]:
    """The prompts of at most `max_length` tokens, which are never cut; `counts` says what became of the others."""
    for prompt in prompts:
        example = encode_prompt(prompt, tokenizer, policy)
        counts.read += 1
        if max_length is not None and len(example.prompt) > max_length:
            counts.dropped_long += 1
        elif not len(example.prompt):
            counts.dropped_empty += 1
        else:
            counts.kept += 1
            yield example


def fitting(
    examples: Iterable[_Answered], counts: Counts, max_length: int | None = None, over_long: OverLong = "truncate"
) -> Iterator[_Answered]:
    """The examples that are worth learning from, prompt and longer answer within `max_length` tokens.

    Truncation keeps the beginning, and the end that is lost takes its EOS along. An example is left out if not all its
    answers keep a token that counts; `counts` says what became of all.
    """
    for example in examples:
        sides = _fitted(example, counts, max_length, over_long)
        if sides is not None:
            yield example.with_sides(sides)


def _fitted(
    example: PairExample | CompletionExample, counts: Counts, max_length: int | None, over_long: OverLong
) -> list[Side] | None:
    room = max(map(len, example.completions)) if max_length is None else max(max_length - len(example.prompt), 0)
    cut = any(len(ids) > room for ids in example.completions)
    counts.read += 1
    if cut and (over_long == "drop" or not room):
        counts.dropped_long += 1
        return None
    masks = [mask[:room] for mask in example.masks]
    if not all(mask.any() for mask in masks):
        counts.dropped_empty += 1
        return None
    counts.kept += 1
    counts.truncated += cut
    counts.border_moved += example.border_moved
    return [(ids[:room], short(mask)) for ids, mask in zip(example.completions, masks, strict=True)]
