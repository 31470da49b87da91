"""From logits to the next token, each row of a batch by its own rules.

Shapes: B rows (sequences), of which R are not simply greedy; V vocabulary.
Order: bias, penalties, what may not come; then the likeliest token, or temperature, min-p, top-k, top-p and a draw.
Filters are those of transformers' warpers; each leaves at least one token.

What is cheap on a CPU decides how it is done: of 64 rows of 50,000, a softmax takes 2 ms, the best 50 of each 5 ms, a
running sum in double precision 8 ms, a sort 240 ms. So no row is sorted (see `_draw`), nor summed up (`_categorical`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from intaglio.engine.chooser import Chooser
from intaglio.engine.logprobs import AT_ONCE, TokenLogprob, token_logprobs
from intaglio.engine.sampling_params import SamplingParams

__all__ = ["Sampled", "choose"]


@dataclass(frozen=True)
class Sampled:
    """One token for each row.

    Attributes:
        ids: the tokens chosen, (B,) int64.
        logprobs: how likely each was, before any bias, penalty, temperature or filter; None for rows that did not ask.
    """

    ids: Tensor
    logprobs: list[TokenLogprob | None]


def choose(logits: Tensor, choosers: Sequence[Chooser]) -> Sampled:
    """Chooses the next token of each row.

    The engine calls this once a step with the rows that get a token, then `Chooser.take` with what it keeps. A row with
    a seed draws the same tokens whatever rows it is batched with.

    Args:
        logits: (B, V), any float dtype; not changed.
        choosers: one for each row.
    """
    assert logits.shape[0] == len(choosers), "one chooser a row"
    rest = [row for row, chooser in enumerate(choosers) if not chooser.plain]
    ids = _likeliest(logits) if len(rest) < len(choosers) else logits.new_empty(len(rest), dtype=torch.long)
    for some in _batches(rest, logits.shape[-1]):
        ids[some] = _by_rules(_copied(logits, some), [choosers[row] for row in some])
    return Sampled(ids, _logprobs(logits, ids, choosers))


def _by_rules(scores: Tensor, choosers: Sequence[Chooser]) -> Tensor:
    """(R, V) fp32, which is written over -> (R,)"""
    _add_bias(scores, choosers)
    _penalise(scores, choosers)
    _forbid(scores, choosers)
    drawn = [row for row, chooser in enumerate(choosers) if not chooser.params.greedy]
    ids = _likeliest(scores) if len(drawn) < len(choosers) else torch.empty_like(scores[:, 0], dtype=torch.long)
    if drawn:
        ids[drawn] = _draw(_rows(scores, drawn), [choosers[row] for row in drawn])
    return ids


def _likeliest(scores: Tensor) -> Tensor:
    """(B,); `argmax` would give the same, in bf16 on a CPU several times slower"""
    return scores.max(dim=-1).indices


def _logprobs(logits: Tensor, ids: Tensor, choosers: Sequence[Chooser]) -> list[TokenLogprob | None]:
    """None for the rows that did not ask."""
    told: list[TokenLogprob | None] = [None] * len(choosers)
    rows = [row for row, chooser in enumerate(choosers) if chooser.params.logprobs is not None]
    if rows:
        top = [choosers[row].params.logprobs or 0 for row in rows]
        for row, one in zip(rows, token_logprobs(_rows(logits, rows), ids[rows].tolist(), top), strict=True):
            told[row] = one
    return told


# What may come, and how much the rules change it


def _add_bias(scores: Tensor, choosers: Sequence[Chooser]) -> None:
    biased = [(row, *chooser.bias) for row, chooser in enumerate(choosers) if chooser.bias is not None]
    if biased:
        places = _places(scores, [(row, ids) for row, ids, _ in biased])
        scores.view(-1)[places] += _like(scores, np.concatenate([values for *_, values in biased]))


def _penalise(scores: Tensor, choosers: Sequence[Chooser]) -> None:
    """Repetition first, then presence and frequency."""
    some = [(row, c.params, c.occurred) for row, c in enumerate(choosers) if c.occurred is not None]
    if not some:
        return
    places = _places(scores, [(row, occurred.ids) for row, _, occurred in some])
    each = [np.full(len(occurred.ids), p.repetition_penalty, np.float32) for _, p, occurred in some]
    penalty, charge = _like(scores, np.concatenate(each)), np.concatenate([occurred.charge for *_, occurred in some])
    found = scores.view(-1)[places]
    found = torch.where(found < 0, found * penalty, found / penalty)
    scores.view(-1)[places] = found - _like(scores, charge)


def _forbid(scores: Tensor, choosers: Sequence[Chooser]) -> None:
    masks = {row: mask for row, chooser in enumerate(choosers) if (mask := chooser.may_be) is not None}
    if masks:
        added = np.where(np.stack([*masks.values()]), np.float32(0), np.float32("-inf"))
        scores.index_add_(0, _like(scores, np.array([*masks])), _like(scores, added))
    banned = [(row, np.array(c.banned, np.int64)) for row, c in enumerate(choosers) if row not in masks]
    if any(len(ids) for _, ids in banned):
        scores.view(-1)[_places(scores, banned)] = float("-inf")


def _places(scores: Tensor, ids: Sequence[tuple[int, NDArray[np.int64]]]) -> Tensor:
    """Where the ids of some rows stand in all scores end to end."""
    return _like(scores, np.concatenate([row * scores.shape[-1] + of_row for row, of_row in ids]))


# Draws


def _draw(scores: Tensor, choosers: Sequence[Chooser]) -> Tensor:
    """(R, V) -> (R,)

    Top-p by rejection: a token is drawn from all; if those likelier than it have top_p together, it is outside, and
    with it all that are no likelier, so that the next try is among the likelier ones. The tokens inside keep their
    shares, so this draws as if the row had been sorted and cut. The idea is that of FlashInfer's kernels.
    """
    params = [chooser.params for chooser in choosers]
    weights = _weights(scores, params)
    ids = _categorical(weights, choosers)
    unsure = [row for row, p in enumerate(params) if p.top_p < 1]
    if unsure:
        limits = _column([p.top_p for p in params], weights)[:, 0] * weights.sum(dim=-1)  # (R,)
    while unsure:
        likelier = _likelier(_rows(weights, unsure), ids[unsure])
        outside = _reaches(likelier, limits[unsure])
        unsure = [row for row, again in zip(unsure, outside.tolist(), strict=True) if again]
        if unsure:
            weights[unsure] = likelier[outside]
            ids[unsure] = _categorical(likelier[outside], [choosers[row] for row in unsure])
    return ids


def _weights(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Probabilities after temperature, (R, V), with 0 for what min-p and top-k leave out; `scores` is written over."""
    weights = scores.div_(_column([p.temperature for p in params], scores)).softmax(dim=-1)
    if not any(p.min_p or p.top_k > 0 for p in params):
        return weights
    least = _column([p.min_p for p in params], scores) * weights.amax(dim=-1, keepdim=True)  # (R, 1)
    top_k = {row: p.top_k for row, p in enumerate(params) if 0 < p.top_k < scores.shape[-1]}
    if top_k:
        rows, last = [*top_k], torch.tensor([k - 1 for k in top_k.values()], device=scores.device)[:, None]
        best = _rows(weights, rows).topk(max(top_k.values()), dim=-1).values
        least[rows] = least[rows].maximum(best.gather(-1, last))
    return weights.mul_(weights >= least)


def _likelier(weights: Tensor, ids: Tensor) -> Tensor:
    """(R, V), with 0 for all that is no likelier than each row's token."""
    return weights * (weights > weights.gather(-1, ids[:, None]))


def _reaches(likelier: Tensor, limits: Tensor) -> Tensor:
    """(R,): whether the tokens likelier than the one drawn leave it outside; the likeliest never is."""
    total = likelier.sum(dim=-1)
    return (total >= limits) & (total > 0)


def _categorical(weights: Tensor, choosers: Sequence[Chooser]) -> Tensor:
    """(R, V) -> (R,): first a stretch of the vocabulary, then a token in it, each by its share.

    Two random numbers a row: noise for every token (Gumbel's trick) costs many times the whole step.
    """
    uniform = _uniform(choosers, weights.device)  # (R, 2)
    width = isqrt(weights.shape[-1])
    stretch = _pick(_stretches(weights, width), uniform[:, :1])  # (R, 1)
    columns = stretch * width + torch.arange(width, device=weights.device)  # (R, width)
    inside = weights.gather(-1, columns.clamp(max=weights.shape[-1] - 1)) * (columns < weights.shape[-1])
    return (stretch * width + _pick(inside, uniform[:, 1:]))[:, 0]


def _stretches(weights: Tensor, width: int) -> Tensor:
    """The weight of each `width` tokens, (R, n); the last stretch may be shorter."""
    whole = weights.shape[-1] // width * width
    sums = weights[:, :whole].unflatten(-1, (-1, width)).sum(dim=-1)
    return torch.cat((sums, weights[:, whole:].sum(dim=-1, keepdim=True)), dim=-1)


def _pick(weights: Tensor, uniform: Tensor) -> Tensor:
    """(R, n), shares (R, 1) in [0, 1) -> (R, 1): where the sum first exceeds the share; the weight there is not 0."""
    summed = weights.to(uniform.dtype).cumsum(dim=-1)
    total = summed[:, -1:]
    goal = (uniform * total).minimum(total.nextafter(torch.zeros_like(total)))  # a rounded product may reach the total
    return torch.searchsorted(summed, goal, right=True)


def _uniform(choosers: Sequence[Chooser], device: torch.device) -> Tensor:
    """(R, 2), always drawn on the CPU: a seed gives the same numbers on every device."""
    uniform = torch.rand(len(choosers), 2, dtype=torch.float64)
    for row, chooser in enumerate(choosers):
        if chooser.generator is not None:
            uniform[row].uniform_(generator=chooser.generator)
    return uniform.to(device, torch.float32 if device.type == "mps" else torch.float64)  # MPS has no doubles


# Tensors


def _batches(rows: Sequence[int], vocab: int) -> Iterator[Sequence[int]]:
    """As many rows at a time as make up `AT_ONCE` numbers."""
    count = max(1, AT_ONCE // vocab)
    return (rows[start : start + count] for start in range(0, len(rows), count))


def _copied(logits: Tensor, rows: Sequence[int]) -> Tensor:
    """Some rows in fp32, to be written over."""
    return logits.to(torch.float32, copy=True) if len(rows) == len(logits) else logits[list(rows)].float()


def _rows(scores: Tensor, rows: Sequence[int]) -> Tensor:
    return scores if len(rows) == len(scores) else scores[list(rows)]


def _like(scores: Tensor, array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array).to(scores.device)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
