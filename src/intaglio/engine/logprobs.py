"""How likely the chosen tokens were, and which were likelier: under the model itself, before anything was changed.

Legend: B rows, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # these facts cross into processes that hold no model, and no torch
    from torch import Tensor

__all__ = ["TokenLogprob", "token_logprobs"]

AT_ONCE = 2**20
"""Numbers worked on at a time, about 20 rows of a vocabulary: larger temporaries are asked of the system anew each
time, which can cost more than the arithmetic, and those of a long prompt would fill the memory."""


@dataclass(frozen=True)
class TokenLogprob:
    """One token and those that might have stood in its place.

    Attributes:
        token_id: the token.
        log_prob: its log-probability.
        rank: 1 for the likeliest: one more than the tokens that were likelier.
        top: the likeliest tokens with their log-probabilities, the likeliest first. A token's number here is the very
            number that `log_prob` would be.
    """

    token_id: int
    log_prob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


def token_logprobs(logits: "Tensor", ids: Sequence[int], top: Sequence[int]) -> list[TokenLogprob]:
    """What the model thought of each row's token.

    For a prompt, row t is what the model said after token t, and ids[t] the token behind it, t + 1; the prompt's first
    token has none. Chunks of a prompt may be looked at one by one.

    Args:
        logits: (B, V) as the model gave them, any float dtype; not changed.
        ids: the token of each row.
        top: for each row, how many of the likeliest tokens to tell.
    """
    rows = max(1, AT_ONCE // logits.shape[-1])
    blocks = [slice(start, start + rows) for start in range(0, len(ids), rows)]
    return [told for block in blocks for told in _of_block(logits[block], ids[block], top[block])]


def _of_block(logits: "Tensor", ids: Sequence[int], top: Sequence[int]) -> Iterator[TokenLogprob]:
    import torch

    log_probs = logits.float().log_softmax(dim=-1)  # all numbers told come from here
    own = log_probs.gather(-1, torch.tensor(ids, device=logits.device)[:, None])  # (B, 1)
    likelier = torch.gt(log_probs, own, out=torch.empty_like(log_probs))  # as numbers: booleans are slow to add up
    ranks = likelier.sum(dim=-1).long() + 1
    likeliest = _likeliest(log_probs, max(top))
    for token_id, log_prob, rank, best, n in zip(ids, own[:, 0].tolist(), ranks.tolist(), likeliest, top, strict=True):
        yield TokenLogprob(token_id, log_prob, rank, best[:n])


def _likeliest(log_probs: "Tensor", n: int) -> list[tuple[tuple[int, float], ...]]:
    if n == 0:
        return [()] * len(log_probs)
    best = log_probs.topk(min(n, log_probs.shape[-1]), dim=-1)
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [tuple(zip(ids, values, strict=True)) for ids, values in rows]
