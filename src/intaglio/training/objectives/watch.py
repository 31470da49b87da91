"""How far a policy has gone from the one that drew its answers: what an early stop looks at."""

from dataclasses import dataclass

from torch import Tensor

from intaglio.training.objectives.metrics import Mean, Metric
from intaglio.training.rollouts import RolloutBatch

__all__ = ["Watch", "told"]


@dataclass
class Watch:
    """The approximate KL of one optimizer step, token by token.

    The objective notes it, and who hands out batches reads it and begins anew.

    Attributes:
        total: nats.
        count: tokens.
    """

    total: float = 0.0
    count: int = 0

    def note(self, approx_kl: Tensor) -> None:
        """Of the tokens of a micro-batch (n,)."""
        self.total += float(approx_kl.double().sum())
        self.count += approx_kl.numel()

    def read(self) -> float:
        """The mean since it was last read, 0 of nothing."""
        mean = self.total / max(self.count, 1)
        self.total, self.count = 0.0, 0
        return mean


def told(batch: RolloutBatch) -> dict[str, Metric]:
    """What was measured on the rollout that begins with this micro-batch."""
    return {name: Mean(value, 1) for name, value in batch.told.items()}
