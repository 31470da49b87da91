"""From scores to what is learned of them: the two ways, that of PPO and that of GRPO.

Legend: n tokens of all answers, D answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from intaglio.training.rl.advantages import (
    Scaling,
    gae,
    group_advantages,
    less_for_no_end,
    sums_of,
    token_rewards,
    whiten,
)
from intaglio.training.rl.kl_control import Estimator, KLControl, divergence
from intaglio.training.rl.rollouts import Rollout

__all__ = ["ByCritic", "ByGroup", "Judge", "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """What the rewards said of a rollout.

    Attributes:
        scores: (D,), NaN where an answer could not be scored.
        each: by the name of the reward, (D,).
        ended: (D,) bool, whether the answer ended by itself.
    """

    scores: Tensor
    each: Mapping[str, Tensor]
    ended: Tensor


class Judge(Protocol):
    """Gives a rollout its advantages."""

    def __call__(self, rollout: Rollout, verdict: Verdict) -> tuple[Rollout, dict[str, float]]:
        """The rollout with all that its objective needs, and what is logged of it."""


class ByCritic:
    """PPO's: KL penalty and score become rewards of tokens, and those, by GAE over the critic's values, advantages.

    Args:
        control: weighs the divergence, and is told of it afterwards.
        estimator: see `divergence`.
        gamma, lam: see `gae`.
        whiten_rewards: see `PPOSpec`.
        penalty: see `less_for_no_end`.
    """

    def __init__(
        self,
        control: KLControl,
        *,
        estimator: Estimator = "k1",
        gamma: float = 1.0,
        lam: float = 0.95,
        whiten_rewards: bool = False,
        penalty: float | None = None,
    ) -> None:
        self.control, self.estimator, self.gamma, self.lam = control, estimator, gamma, lam
        self.whiten_rewards, self.penalty = whiten_rewards, penalty

    def __call__(self, rollout: Rollout, verdict: Verdict) -> tuple[Rollout, dict[str, float]]:
        """See `Judge`; advantages are whitened over the whole rollout. An answer without a score has a score of 0."""
        lengths, coefficient = rollout.lengths, self.control.coefficient
        scores = less_for_no_end(verdict.scores.nan_to_num(0.0), verdict.ended, self.penalty)
        away = divergence(rollout.log_probs, rollout.reference, self.estimator)  # (n,)
        rewards = token_rewards(away, scores, lengths, coefficient)
        if self.whiten_rewards:
            rewards = whiten(rewards, shift_mean=False)
        advantages, returns = gae(rewards, rollout.values, lengths, self.gamma, self.lam)
        kl = float(sums_of(away, lengths).mean())
        told = self._told(rollout, scores, away, verdict)
        self.control.update(kl, len(rollout))
        return replace(rollout, advantages=whiten(advantages), returns=returns), told

    def _told(self, rollout: Rollout, scores: Tensor, away: Tensor, verdict: Verdict) -> dict[str, float]:
        """TRL's names; each is a mean over answers of a sum over its tokens."""
        penalties = -self.control.coefficient * sums_of(away, rollout.lengths)  # (D,)
        return {
            "objective/kl": float(sums_of(away, rollout.lengths).mean()),
            "objective/kl_coef": self.control.coefficient,
            "objective/entropy": float(sums_of(-rollout.log_probs, rollout.lengths).mean()),
            "objective/non_score_reward": float(penalties.mean()),
            "objective/rlhf_reward": float((penalties + scores).mean()),
            "objective/scores": float(scores.mean()),
            "val/num_eos_tokens": float(verdict.ended.sum()),
        }


class ByGroup:
    """GRPO's: an answer's advantage is its reward in relation to those of its group, the same for all its tokens.

    Args:
        group: answers to one prompt.
        scaling: see `group_advantages`.
        mask_truncated: whether answers that did not end are left out of the loss; they count in their group's mean.
    """

    def __init__(self, group: int, scaling: Scaling = "group", *, mask_truncated: bool = False) -> None:
        self.group, self.scaling, self.mask_truncated = group, scaling, mask_truncated

    def __call__(self, rollout: Rollout, verdict: Verdict) -> tuple[Rollout, dict[str, float]]:
        """See `Judge`."""
        advantages = group_advantages(verdict.scores, self.group, self.scaling)  # (D,)
        by_token = advantages.repeat_interleave(rollout.answer_lengths)
        learned = verdict.ended if self.mask_truncated else rollout.learned
        return replace(rollout, advantages=by_token, learned=learned), self._told(verdict)

    def _told(self, verdict: Verdict) -> dict[str, float]:
        """TRL's names."""
        spreads = _spreads(verdict.scores.view(-1, self.group))
        return {"frac_reward_zero_std": float((spreads < 1e-8).float().mean())}


def _spreads(rows: Tensor) -> Tensor:
    return torch.stack([row[row.isfinite()].std() if row.isfinite().sum() > 1 else row.new_zeros(()) for row in rows])
