"""From logits to the next token, each row of a batch by its own rules.

Shapes: B rows (sequences), V vocabulary.
Order: repetition penalty, temperature, min-p, top-k, top-p, then a draw. A row that is greedy takes the likeliest token
after the penalty. Filters are those of transformers' warpers; each leaves at least one token.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intaglio.engine.sampling_params import SamplingParams

__all__ = ["Sampled", "SamplingParams", "filter_logits", "generator_for", "sample"]

_FEW = 512  # tokens among which top-p is looked for first


@dataclass(frozen=True)
class Sampled:
    """One token for each row.

    Attributes:
        ids: the tokens chosen, (B,) int64.
        log_probs: their log-probabilities under the model itself, before any penalty, temperature or filter, (B,)
            fp32; None unless asked for.
    """

    ids: Tensor
    log_probs: Tensor | None = None


def generator_for(params: SamplingParams, device: torch.device | str = "cpu") -> torch.Generator | None:
    """The generator of one seeded sequence, to be kept through its life; None without a seed."""
    return None if params.seed is None else torch.Generator(device).manual_seed(params.seed)


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams],
    histories: Sequence[Sequence[int]] | None = None,
    generators: Sequence[torch.Generator | None] | None = None,
    *,
    forbidden: Sequence[Collection[int]] | None = None,
    log_probs: bool = False,
) -> Sampled:
    """Chooses the next token of each row.

    A row with a generator of its own draws the same tokens whatever rows it is batched with.

    Args:
        logits: (B, V), any float dtype; not changed.
        params: one for each row.
        histories: ids that occurred in each row, prompt included; needed where there is a repetition penalty.
        generators: one for each row, on the device of the logits; None for the device's own.
        forbidden: for each row the ids it may not choose now (those that would end it too early).
        log_probs: whether to return the raw log-probabilities of the chosen tokens too.
    """
    assert logits.shape[0] == len(params), "one SamplingParams a row"
    scores = _without(_penalised(logits, params, histories), forbidden)  # (B, V)
    drawn = [row for row, p in enumerate(params) if not p.greedy]
    if len(drawn) < len(params):
        ids = scores.argmax(dim=-1)  # (B,)
    else:
        ids = torch.empty(len(params), dtype=torch.long, device=logits.device)  # (B,)
    if drawn:
        ids[drawn] = _draw(_rows(scores, drawn), [params[r] for r in drawn], _pick(generators, drawn))
    return Sampled(ids, _log_probs(logits, ids) if log_probs else None)


def filter_logits(scores: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Scores over temperature, with -inf for the tokens that min-p, top-k and top-p exclude.

    Args:
        scores: (B, V) fp32.
        params: one for each row, none of them greedy.
    """
    scores = scores / _column([p.temperature for p in params], scores)
    scores = _min_p(scores, [p.min_p for p in params])
    top_k = [p.top_k if 0 < p.top_k < scores.shape[-1] else 0 for p in params]
    top_p = [p.top_p for p in params]
    scores = _top_k(scores, top_k)
    return _top_p(scores, top_p)


def _draw(scores: Tensor, params: Sequence[SamplingParams], generators: Sequence[torch.Generator | None]) -> Tensor:
    """Draws from softmax(scores): the first token at which the summed probability exceeds a uniform number.

    One number a row, and sums in double precision: noise for every token (Gumbel's trick) costs several times as much.
    """
    probabilities = filter_logits(scores.float(), params).softmax(dim=-1)  # (B, V)
    exact = torch.float32 if scores.device.type == "mps" else torch.float64  # MPS has no doubles
    summed = probabilities.to(exact).cumsum(dim=-1)  # (B, V)
    uniform = torch.rand(len(params), dtype=exact, device=scores.device)  # (B,)
    for row, generator in enumerate(generators):
        if generator is not None:
            uniform[row].uniform_(generator=generator)
    found = torch.searchsorted(summed, uniform[:, None] * summed[:, -1:], right=True)[:, 0]
    return found.clamp_(max=scores.shape[-1] - 1)


def _penalised(logits: Tensor, params: Sequence[SamplingParams], histories: Sequence[Sequence[int]] | None) -> Tensor:
    rows = [row for row, p in enumerate(params) if p.repetition_penalty != 1]
    if not rows:
        return logits
    assert histories is not None, "a repetition penalty needs the ids that occurred"
    scores = logits.float().clone()  # (B, V)
    for row in rows:
        index = torch.as_tensor(histories[row], dtype=torch.long, device=scores.device)
        index = index[index < scores.shape[-1]]  # the tokenizer may know ids that the model does not
        penalty = params[row].repetition_penalty
        found = scores[row, index]
        scores[row, index] = torch.where(found < 0, found * penalty, found / penalty)
    return scores


def _without(scores: Tensor, forbidden: Sequence[Collection[int]] | None) -> Tensor:
    if not forbidden or not any(forbidden):
        return scores
    scores = scores.clone()
    for row, ids in enumerate(forbidden):
        scores[row, [i for i in ids if i < scores.shape[-1]]] = float("-inf")
    return scores


def _min_p(scores: Tensor, min_p: Sequence[float]) -> Tensor:
    if not any(min_p):
        return scores
    probabilities = scores.softmax(dim=-1)
    least = _column(min_p, scores) * probabilities.amax(dim=-1, keepdim=True)
    return scores.masked_fill(probabilities < least, float("-inf"))


def _top_k(scores: Tensor, top_k: Sequence[int]) -> Tensor:
    """Rows with a 0 keep everything. Tokens as likely as the last one kept are kept too."""
    if not any(top_k):
        return scores
    best = scores.topk(max(top_k), dim=-1).values  # (B, K)
    last = torch.tensor([max(k - 1, 0) for k in top_k], device=scores.device)[:, None]
    least = best.gather(-1, last)
    off = torch.tensor([k == 0 for k in top_k], device=scores.device)[:, None]
    return scores.masked_fill((scores < least) & ~off, float("-inf"))


def _top_p(scores: Tensor, top_p: Sequence[float]) -> Tensor:
    """Keeps a token if those likelier than it have less than top_p together; rows with 1 keep everything."""
    rows = [row for row, p in enumerate(top_p) if p < 1]
    if not rows:
        return scores
    limit = _column([top_p[row] for row in rows], scores)  # (R, 1)
    ordered, order = _likeliest(_rows(scores, rows).softmax(dim=-1), limit)  # (R, K)
    likelier = ordered.cumsum(dim=-1) - ordered
    dropped = torch.ones(len(rows), scores.shape[-1], dtype=torch.bool, device=scores.device)
    dropped.scatter_(-1, order, likelier >= limit)
    if len(rows) == len(top_p):
        return scores.masked_fill(dropped, float("-inf"))
    scores = scores.clone()
    scores[rows] = scores[rows].masked_fill(dropped, float("-inf"))
    return scores


def _likeliest(probabilities: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Enough of the likeliest tokens to reach `limit`, the likeliest first, and where they stand.

    Nearly always a few hundred are enough, and finding those is far cheaper than to sort a whole vocabulary.
    """
    few = probabilities.topk(min(_FEW, probabilities.shape[-1]), dim=-1)
    if bool((few.values.sum(dim=-1, keepdim=True) >= limit).all()):
        return few.values, few.indices
    everything = probabilities.sort(dim=-1, descending=True)
    return everything.values, everything.indices


def _log_probs(logits: Tensor, ids: Tensor) -> Tensor:
    raw = logits.float()
    return raw.gather(-1, ids[:, None])[:, 0] - raw.logsumexp(dim=-1)


def _rows(scores: Tensor, rows: Sequence[int]) -> Tensor:
    return scores if len(rows) == scores.shape[0] else scores[list(rows)]


def _pick(generators: Sequence[torch.Generator | None] | None, rows: Sequence[int]) -> Sequence[torch.Generator | None]:
    return [None] * len(rows) if generators is None else [generators[row] for row in rows]


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
