"""The generation loop: a batch of prompts, one forward over them, then one token for every row at a time.

Legend: B rows, T prompt tokens, V vocabulary.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from intaglio.engine.sampler import generator_for, sample
from intaglio.engine.sampling_params import SamplingParams
from intaglio.engine.session import Session, session_class
from intaglio.engine.stopping import FinishReason, Stopping, StopRules
from intaglio.errors import UserError
from intaglio.text.tokenizer import Tokenizer

__all__ = ["Piece", "generate", "most_tokens"]


@dataclass(frozen=True)
class Piece:
    """What one row made in one step.

    Attributes:
        row: which prompt.
        token_id: the token.
        log_prob: its log-probability under the model itself.
        text: what may be shown now; tokens of half a character, or of what may become a stop string, show nothing.
        finish_reason: set on the row's last piece.
    """

    row: int
    token_id: int
    log_prob: float
    text: str
    finish_reason: FinishReason | None


def generate(
    model: Any, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> Iterator[Piece]:
    """Continues every prompt, or answers it where the model writes a text of its own; pieces come as they are made.

    Args:
        model: of any kind of ours, on its device, in its dtype.
        tokenizer: for EOS ids, stop strings and text.
        prompts: ids, one list a row, of any lengths.
        params: one for each row.

    Raises:
        UserError: an empty prompt, an id beyond the vocabulary, or more tokens than the context holds; a row that asks
            for beam search, whose text is known only at the end.
    """
    rows = [_Row(model, tokenizer, row, ids, p) for row, (ids, p) in enumerate(zip(prompts, params, strict=True))]
    session = session_class(model)(model, [row.max_tokens for row in rows])
    return _loop(session, rows)


class _Row:
    """One sequence while it grows."""

    def __init__(self, model: Any, tokenizer: Tokenizer, row: int, ids: Sequence[int], p: SamplingParams) -> None:
        if p.num_beams > 1:
            raise UserError("beam search makes no pieces", where=f"prompt {row + 1}", mend="set num_beams to 1")
        self.row, self.prompt, self.params = row, list(ids), p
        self.max_tokens = most_tokens(model, self.prompt, p, row)
        rules = StopRules.of(p, tokenizer.eos_token_ids)
        self.stopping = Stopping(StopRules(rules.ids, rules.strings, self.max_tokens, rules.min_tokens), tokenizer)
        self.generator = generator_for(p, next(model.parameters()).device)
        self.history = list(self.prompt) if session_class(model).continues else [model.spec.start_token_id]

    @property
    def forbidden(self) -> Collection[int]:
        """Ids that must not be chosen next."""
        return (*self.stopping.forbidden_ids, *self.params.forbidden_token_ids)

    @property
    def finished(self) -> bool:
        return self.stopping.finish_reason is not None

    def take(self, token_id: int, log_prob: float) -> Piece:
        self.history.append(token_id)
        text = self.stopping.add(token_id)
        return Piece(self.row, token_id, log_prob, text, self.stopping.finish_reason)


def most_tokens(model: Any, prompt: Sequence[int], params: SamplingParams, row: int) -> int:
    """What may be made for a prompt at most; by default as much as the context holds.

    Raises:
        UserError: see `generate`; or nothing bounds the model's context, and `max_tokens` does not either.
    """
    where, context = f"prompt {row + 1}", model.spec.context_limit
    _check_prompt(prompt, model.spec.vocab_size, where)
    if context is None:
        if params.max_tokens is None:
            raise UserError("this model would never end", where=where, mend="set max_tokens")
        return params.max_tokens
    continues = session_class(model).continues
    room = context - len(prompt) if continues else context
    if room < 1 or len(prompt) > context:
        raise UserError(f"{len(prompt)} tokens do not fit into a context of {context}", where=where, mend="shorten it")
    if params.max_tokens is not None and params.max_tokens > room:
        taken = f"{len(prompt)} tokens and {params.max_tokens} new ones" if continues else f"{params.max_tokens} tokens"
        raise UserError(
            f"{taken} do not fit into a context of {context}", where=where, mend=f"at most {room} new ones do"
        )
    return params.max_tokens or room


def _check_prompt(prompt: Sequence[int], vocab_size: int, where: str) -> None:
    if not prompt:
        raise UserError("the prompt is empty", where=where, mend="give at least one token")
    if max(prompt) >= vocab_size:
        what = f"token {max(prompt)} is beyond the model's vocabulary of {vocab_size}"
        raise UserError(what, where=where, mend="the tokenizer belongs to another model")


@torch.inference_mode()
def _loop(session: Session, rows: list[_Row]) -> Iterator[Piece]:
    logits = session.prefill([row.prompt for row in rows])
    while True:
        chosen, log_probs = _choose(logits.float(), rows)
        for row, token_id, log_prob in zip(rows, chosen.tolist(), log_probs.tolist(), strict=True):
            if not row.finished:
                yield row.take(token_id, log_prob)
        if all(row.finished for row in rows):
            return
        logits = session.step(chosen)


def _choose(logits: Tensor, rows: list[_Row]) -> tuple[Tensor, Tensor]:
    """(B, V) -> ids (B,), log-probabilities (B,); rows that have finished choose too, and nobody looks."""
    sampled = sample(
        logits,
        [row.params for row in rows],
        [row.history for row in rows],
        [row.generator for row in rows],
        forbidden=[row.forbidden for row in rows],
        log_probs=True,
    )
    assert sampled.log_probs is not None
    return sampled.ids, sampled.log_probs
