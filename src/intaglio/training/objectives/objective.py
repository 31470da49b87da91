"""What the loop asks of an objective, and nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from intaglio.training.batching.batches import Batch
from intaglio.training.objectives.metrics import Metric
from intaglio.training.objectives.mixtures import ExpertUse

__all__ = ["Loss", "Objective", "Stateful"]


@dataclass
class Loss:
    """The loss of one micro-batch, not yet divided.

    Attributes:
        total: summed over targets, in nats; the loop divides by the targets of the whole optimizer step, so that
            splitting a step into micro-batches changes nothing.
        extra: added to the divided loss as it is, weighted by the micro-batch's share of the step's targets (balance).
        metrics: what else is logged, by name.
        experts: how each mixture of experts was used, layer by layer.
    """

    total: Tensor
    extra: Tensor | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    experts: Sequence[ExpertUse] = ()


class Objective(Protocol):
    """A loss over batches."""

    def __call__(self, model: nn.Module, batch: Batch) -> Loss:
        """The loss of one micro-batch; a batch without targets gives 0 that is still part of the graph."""


@runtime_checkable
class Stateful(Protocol):
    """An objective that remembers something from step to step, which a checkpoint must hold."""

    def state(self) -> dict[str, Tensor]:
        """What it remembers, by name."""

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Goes on as the objective that `state` came from would."""
