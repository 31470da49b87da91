"""Which of the tokens that were made deserve more of it: rewards of tokens, GAE, whitening, groups.

Nothing is padded: the answers of a rollout lie end to end, and `lengths` says where each ends.

Legend: n tokens of all answers, D answers, P prompts, G answers of each prompt (D = P * G).
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Scaling", "gae", "group_advantages", "less_for_no_end", "sums_of", "token_rewards", "whiten"]

Scaling = Literal["group", "batch", "none"]
"""By what the spread of rewards is divided: that of their `group`, of all groups together, or nothing."""

_GROUP_EPS = 1e-4  # TRL's


def token_rewards(divergence: Tensor, scores: Tensor, lengths: Sequence[int], coefficient: float) -> Tensor:
    """-coefficient * KL at every token, and the score at the answer's last one (Ouyang et al. 2022, section 3.5).

    The last token is an action like every other: the EOS that the policy chose, or what stood last when the length ran
    out. TRL's PPO puts the score one place further, on padding (its issue 3750), where the last action learns of it
    through the value of a token that was never made.

    Args:
        divergence: (n,), see `kl_control.divergence`.
        scores: (D,).
        lengths: tokens of each answer.
        coefficient: see `kl_control`.

    Returns:
        (n,)
    """
    rewards = -coefficient * divergence
    lasts = torch.tensor(lengths).cumsum(dim=0) - 1
    return rewards.index_add(0, lasts, scores.to(rewards.dtype))


def less_for_no_end(scores: Tensor, ended: Tensor, penalty: float | None) -> Tensor:
    """The scores (D,), less `penalty` for each answer that did not end by itself, whatever token or text ends one."""
    return scores if penalty is None else scores - penalty * (~ended).to(scores.dtype)


def gae(
    rewards: Tensor, values: Tensor, lengths: Sequence[int], discount: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, equation 16), each answer by itself.

        delta_t = r_t + discount * V_(t+1) - V_t        A_t = delta_t + discount * lam * A_(t+1)

    Behind the last token there is no value, also where the length ran out.

    Args:
        rewards, values: (n,).
        lengths: tokens of each answer.
        discount: gamma.
        lam: lambda; 1 gives the rewards to go less the value.

    Returns:
        Advantages (n,), and returns A + V (n,), which the value head learns; neither is whitened.
    """
    parts = zip(rewards.split(list(lengths)), values.split(list(lengths)), strict=True)
    advantages = torch.cat([_gae_of_one(r, v, discount, lam) for r, v in parts])
    return advantages, advantages + values


def _gae_of_one(rewards: Tensor, values: Tensor, discount: float, lam: float) -> Tensor:
    following = torch.cat((values[1:], values.new_zeros(1)))
    deltas = rewards + discount * following - values
    found, last = torch.empty_like(deltas), deltas.new_zeros(())
    for place in reversed(range(len(deltas))):
        last = found[place] = deltas[place] + discount * lam * last
    return found


def whiten(x: Tensor, *, shift_mean: bool = True) -> Tensor:
    """(n,) with a variance of 1, and a mean of 0 unless it is to be kept; the variance is the unbiased one, as TRL's.

    torchtune's flag of the same name means the opposite. One number has no variance: it only loses its mean.
    """
    mean = x.mean()
    spread = x.var() if len(x) > 1 else x.new_zeros(())
    white = (x - mean) * torch.rsqrt(spread + 1e-8)
    return white if shift_mean else white + mean


def group_advantages(rewards: Tensor, group: int, scaling: Scaling = "group") -> Tensor:
    """(r - the group's mean) / (spread + 1e-4) of each answer (Shao et al. 2024, section 4.1.2): (D,) -> (D,)

    The spread is the unbiased standard deviation. An answer whose reward is NaN could not be scored: it is no part of
    its group and its advantage is 0.

    Args:
        rewards: (D,), those of one prompt one behind the other.
        group: G.
        scaling: see `Scaling`; Dr. GRPO (Liu et al. 2025) has `none`.
    """
    of_group = rewards.view(-1, group)  # (P, G)
    centred = of_group - of_group.nanmean(dim=1, keepdim=True)
    if scaling == "group":
        centred = centred / (_spread(of_group) + _GROUP_EPS)
    elif scaling == "batch":
        centred = centred / (_spread(rewards[None]) + _GROUP_EPS)
    return centred.flatten().nan_to_num(0.0)


def _spread(rows: Tensor) -> Tensor:
    """(P, G) -> (P, 1): the unbiased standard deviation of what is there; 0 where that is one number."""
    known = rows.isfinite().sum(dim=1, keepdim=True)
    squares = (rows - rows.nanmean(dim=1, keepdim=True)).square().nansum(dim=1, keepdim=True)
    return (squares / (known - 1).clamp(min=1)).sqrt()


def sums_of(x: Tensor, lengths: Sequence[int]) -> Tensor:
    """(n,) -> (D,): the sum over each answer."""
    owners = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return x.new_zeros(len(lengths)).index_add(0, owners, x)
