"""How far the policy is from its reference, and what that costs.

Legend: n tokens.
"""

from typing import Literal, Protocol

from torch import Tensor

__all__ = ["AdaptiveKL", "Estimator", "FixedKL", "KLControl", "divergence"]

Estimator = Literal["k1", "k3"]


def divergence(log_probs: Tensor, reference: Tensor, estimator: Estimator = "k1") -> Tensor:
    """An estimate of KL(policy, reference) at each token that the policy drew: (n,), (n,) -> (n,)

    With d = log p_reference - log p_policy (Schulman 2020, "Approximating KL divergence"): k1 is -d, unbiased and of
    either sign; k3 is e^d - 1 - d, unbiased too and never negative.
    """
    difference = reference - log_probs
    return -difference if estimator == "k1" else difference.exp() - 1 - difference


class KLControl(Protocol):
    """The weight of the divergence in a token's reward."""

    coefficient: float

    def update(self, divergence: float, answers: int) -> None:
        """After a rollout of so many answers, of which one diverges by so many nats on average."""


class FixedKL:
    """A weight that stays."""

    def __init__(self, coefficient: float) -> None:
        self.coefficient = coefficient

    def update(self, divergence: float, answers: int) -> None:
        """See `KLControl`."""


class AdaptiveKL:
    """A weight that follows a target (Ziegler et al. 2019, section 2.2).

        e = clip(KL / target - 1, -0.2, 0.2)        coefficient *= 1 + e * answers / horizon

    Args:
        coefficient: to begin with.
        target: nats of an answer.
        horizon: answers in which a divergence that is off by a fifth or more changes the weight about by a fifth.
    """

    def __init__(self, coefficient: float, target: float, horizon: int = 10_000) -> None:
        self.coefficient, self.target, self.horizon = coefficient, target, horizon

    def update(self, divergence: float, answers: int) -> None:
        """See `KLControl`."""
        error = min(max(divergence / self.target - 1, -0.2), 0.2)
        self.coefficient *= 1 + error * answers / self.horizon
