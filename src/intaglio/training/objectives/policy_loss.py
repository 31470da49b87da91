"""What PPO and GRPO minimise at each token: clipped surrogates of policy and value, and how tokens are weighed.

Legend: n tokens of all answers, D answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Aggregation", "PolicyLoss", "RatioOf", "clipped_policy_loss", "clipped_value_loss", "means_by_answer"]

Aggregation = Literal["grpo", "bnpo", "dr_grpo", "dapo"]
"""What a token's loss is divided by, see `rollouts.weighed`."""

RatioOf = Literal["token", "sequence"]
"""Whose likelihood then and now makes the ratio."""


@dataclass(frozen=True)
class PolicyLoss:
    """The clipped surrogate.

    Attributes:
        losses: (n,), to be minimised.
        ratio: (n,), without gradient: how much likelier each token has become since it was drawn.
        low, high: (n,) bool: where the ratio left the trust region below (or above), on the side that is worth nothing.
        approx_kl: (n,), without gradient: half the squared log-ratio, which TRL logs as `approxkl`.
    """

    losses: Tensor
    ratio: Tensor
    low: Tensor
    high: Tensor
    approx_kl: Tensor


def clipped_policy_loss(
    log_ratio: Tensor, advantages: Tensor, below: float = 0.2, above: float | None = None
) -> PolicyLoss:
    """max(-A r, -A clip(r, 1 - below, 1 + above)) (Schulman et al. 2017, equation 7).

    Args:
        log_ratio: (n,) log pi - log pi_old of each token.
        advantages: (n,).
        below, above: the trust region; `above` is `below` unless it is given (DAPO's clip-higher, Yu et al. 2025).
    """
    above = below if above is None else above
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - below, 1 + above)
    losses = torch.max(-advantages * ratio, -advantages * clipped)
    still = ratio.detach()
    low, high = (still < 1 - below) & (advantages < 0), (still > 1 + above) & (advantages > 0)
    return PolicyLoss(losses, still, low, high, 0.5 * log_ratio.detach().square())


def clipped_value_loss(values: Tensor, old: Tensor, returns: Tensor, within: float = 0.2) -> tuple[Tensor, Tensor]:
    """max((V - R)^2, (clip(V, V_old +- within) - R)^2) / 2 of each token, and where the clipped one is larger.

    Args:
        values, old: (n,): now, and when the answer was drawn.
        returns: (n,).
        within: how far a value may move.

    Returns:
        (n,), and (n,) bool.
    """
    clipped = torch.clamp(values, old - within, old + within)
    plain, bounded = (values - returns).square(), (clipped - returns).square()
    return 0.5 * torch.max(plain, bounded), (bounded > plain).detach()


def means_by_answer(values: Tensor, lengths: Sequence[int]) -> Tensor:
    """The mean over each answer, at each of its tokens: (n,) -> (n,).

    Of log-ratios it is that of the sequence (GSPO, Zheng et al. 2025, equation 7).
    """
    counts = torch.tensor(lengths, device=values.device)
    owners = torch.repeat_interleave(torch.arange(len(lengths), device=values.device), counts)
    sums = values.new_zeros(len(lengths)).index_add(0, owners, values)
    means: Tensor = (sums / counts.clamp(min=1))[owners]
    return means
