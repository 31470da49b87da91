"""How far a policy has gone from the one that drew its answers: what an early stop looks at."""

from dataclasses import dataclass

from torch import Tensor

from intaglio.training.objectives.metrics import Mean, Metric
from intaglio.training.processes.ranks import ALONE, Ranks
from intaglio.training.rl.rollouts import RolloutBatch

__all__ = ["Watch", "told"]


@dataclass
class Watch:
    """The approximate KL of one optimizer step, token by token, over all ranks.

    The objective notes it, and who hands out batches reads it and begins anew.

    Attributes:
        ranks: that take part in the step.
        total: nats.
        count: tokens.
    """

    ranks: Ranks = ALONE
    total: float = 0.0
    count: int = 0

    def note(self, approx_kl: Tensor) -> None:
        """Of the tokens of a micro-batch (n,)."""
        self.total += float(approx_kl.double().sum())
        self.count += approx_kl.numel()

    def read(self) -> float:
        """The mean since it was last read, 0 of nothing."""
        total, count = self.noted()
        self.total, self.count = 0.0, 0
        return total / max(count, 1)

    def noted(self) -> tuple[float, int]:
        """Nats and tokens since then."""
        totals, counts = zip(*self.ranks.gather((self.total, self.count)), strict=True)
        return sum(totals), sum(counts)

    def go_on(self, total: float, count: int) -> None:
        """From what had been noted when a checkpoint was written."""
        self.total, self.count = (total, count) if self.ranks.number == 0 else (0.0, 0)


def told(batch: RolloutBatch) -> dict[str, Metric]:
    """What was measured on the rollout that begins with this micro-batch."""
    return {name: Mean(value, 1) for name, value in batch.told.items()}
