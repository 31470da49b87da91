"""The generation loop: a batch of prompts, one forward over them, then one token for every row at a time.

Legend: B rows, T prompt tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intaglio.engine.cache import ContiguousCache
from intaglio.engine.sampler import generator_for, sample
from intaglio.engine.sampling_params import SamplingParams
from intaglio.engine.stopping import FinishReason, Stopping, StopRules
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.parts.context import PAD
from intaglio.text.tokenizer import Tokenizer

__all__ = ["Piece", "generate"]


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
    model: Decoder, tokenizer: Tokenizer, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> Iterator[Piece]:
    """Continues every prompt; pieces come as they are made, rows in turn.

    Args:
        model: on its device, in its dtype.
        tokenizer: for EOS ids, stop strings and text.
        prompts: ids, one list a row, of any lengths.
        params: one for each row.

    Raises:
        UserError: an empty prompt, an id beyond the vocabulary, or more tokens than the context holds.
    """
    rows = [_Row(model, tokenizer, row, ids, p) for row, (ids, p) in enumerate(zip(prompts, params, strict=True))]
    return _loop(model, rows)


class _Row:
    """One sequence while it grows."""

    def __init__(self, model: Decoder, tokenizer: Tokenizer, row: int, ids: Sequence[int], p: SamplingParams) -> None:
        self.row, self.prompt, self.params = row, list(ids), p
        self.max_tokens = _max_tokens(model, self.prompt, p, row)
        rules = StopRules.of(p, tokenizer.eos_token_ids)
        self.stopping = Stopping(StopRules(rules.ids, rules.strings, self.max_tokens, rules.min_tokens), tokenizer)
        self.generator = generator_for(p, next(model.parameters()).device)
        self.history = list(self.prompt)

    @property
    def finished(self) -> bool:
        return self.stopping.finish_reason is not None

    def take(self, token_id: int, log_prob: float) -> Piece:
        self.history.append(token_id)
        text = self.stopping.add(token_id)
        return Piece(self.row, token_id, log_prob, text, self.stopping.finish_reason)


def _max_tokens(model: Decoder, prompt: list[int], params: SamplingParams, row: int) -> int:
    """What the row may make at most; by default as much as the context holds."""
    where, context = f"prompt {row + 1}", model.spec.context_limit
    if not prompt:
        raise UserError("the prompt is empty", where=where, mend="give at least one token to continue")
    if max(prompt) >= model.spec.vocab_size:
        what = f"token {max(prompt)} is beyond the model's vocabulary of {model.spec.vocab_size}"
        raise UserError(what, where=where, mend="the tokenizer belongs to another model")
    room = context - len(prompt)
    if room < 1:
        raise UserError(f"{len(prompt)} tokens do not fit into a context of {context}", where=where, mend="shorten it")
    if params.max_tokens is not None and params.max_tokens > room:
        what = f"{len(prompt)} tokens and {params.max_tokens} new ones do not fit into a context of {context}"
        raise UserError(what, where=where, mend=f"at most {room} new ones do")
    return params.max_tokens or room


@torch.inference_mode()
def _loop(model: Decoder, rows: list[_Row]) -> Iterator[Piece]:
    device = next(model.parameters()).device
    ids, positions = _left_padded([row.prompt for row in rows], device)
    cache = ContiguousCache(
        model.spec,
        len(rows),
        ids.shape[1] + max(row.max_tokens for row in rows),
        planned=torch.tensor([len(row.prompt) + row.max_tokens for row in rows], device=device),
        dtype=next(model.parameters()).dtype,
        device=device,
    )
    while True:
        hidden = model.hidden_states(ids, positions, cache)[:, -1]  # (B, E)
        chosen, log_probs = _choose(model.logits(hidden).float(), rows)
        for row, token_id, log_prob in zip(rows, chosen.tolist(), log_probs.tolist(), strict=True):
            if not row.finished:
                yield row.take(token_id, log_prob)
        if all(row.finished for row in rows):
            return
        # rows that have finished stay at the last place: a table of learned positions ends there
        ids, positions = chosen[:, None], (positions[:, -1:] + 1).clamp(max=model.spec.context_limit - 1)


def _choose(logits: Tensor, rows: list[_Row]) -> tuple[Tensor, Tensor]:
    """(B, V) -> ids (B,), log-probabilities (B,); rows that have finished choose too, and nobody looks."""
    sampled = sample(
        logits,
        [row.params for row in rows],
        [row.history for row in rows],
        [row.generator for row in rows],
        forbidden=[row.stopping.forbidden_ids for row in rows],
        log_probs=True,
    )
    assert sampled.log_probs is not None
    return sampled.ids, sampled.log_probs


def _left_padded(prompts: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and positions, (B, T) each; padding on the left, so that every row's next token is in the same column."""
    longest = max(map(len, prompts))
    ids = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
    positions = [[PAD] * (longest - len(prompt)) + list(range(len(prompt))) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(positions, device=device)
