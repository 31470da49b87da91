"""What one micro-batch teaches: its part of a step's loss, and what is told of it.

One process asks the objective and goes backward. In a pipeline the last stage asks it, for what the stages before have
made of the batch, and every other one adds what is its own: the balance of its experts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from intaglio.models.decoder import Decoder
from intaglio.models.heads import decoder_of
from intaglio.parts.context import Packed
from intaglio.parts.forked import Forked
from intaglio.parts.moe import MixtureOfExperts
from intaglio.specs import MoESpec
from intaglio.training.batching.batches import Batch
from intaglio.training.objectives.metrics import Metric
from intaglio.training.objectives.mixtures import ExpertUse, balance
from intaglio.training.objectives.objective import Objective

__all__ = ["Exam", "Lesson", "Mark", "Part", "context_of"]


@dataclass(frozen=True)
class Part:
    """What one micro-batch adds to a step.

    Attributes:
        loss: its part of the step's, which is a mean over targets.
        extra: of the auxiliary loss.
        experts: how each mixture of experts was used, layer by layer.
        metrics: what the objective measures beside its loss.
        targets, tokens, predicted: see `Step`.
    """

    loss: float
    extra: float
    experts: Sequence[ExpertUse]
    metrics: Mapping[str, Metric]
    targets: float
    tokens: int
    predicted: int

    @staticmethod
    def of_stages(parts: Sequence["Part"]) -> "Part":
        """What the stages of a pipeline told of one micro-batch, first to last."""
        experts = [use for part in parts for use in part.experts]
        return replace(parts[-1], extra=sum(part.extra for part in parts), experts=experts)


class Lesson:
    """The micro-batches of a step; see `parallel.station.Work`.

    Args:
        objective: what is minimised.
        targets: of the whole step, on all ranks.
        scale: what the loss is multiplied by before its gradient is taken.
    """

    def __init__(self, objective: Objective, targets: float, scale: float = 1.0) -> None:
        self.objective, self.targets, self.scale = objective, targets, scale

    def context(self, batch: Batch) -> Packed:
        """See `Work`."""
        return context_of(batch)

    def arriving(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Part]:
        """The scaled loss, of which the gradient is taken, and what is told of it."""
        found = self.objective(model, batch)
        part = found.total / self.targets
        extra = self._extra(model, batch, found.extra)
        whole = part if extra is None else part + extra
        return whole * self.scale, self._part(batch, part.item(), extra, found.experts, found.metrics)

    def backward(self, model: nn.Module, batch: Batch) -> Part:
        """Adds a micro-batch's gradients to those that there are."""
        loss, part = self.arriving(model, batch)
        loss.backward()
        return part

    def passing(self, model: nn.Module, batch: Batch) -> tuple[Tensor | None, Part]:
        """See `Work`."""
        extra, experts = balance(decoder_of(model))
        extra = self._extra(model, batch, extra)
        return None if extra is None else extra * self.scale, self._part(batch, 0.0, extra, experts, {})

    def _extra(self, model: nn.Module, batch: Batch, extra: Tensor | None) -> Tensor | None:
        """The auxiliary loss, which is a mean over layers, by this batch's share of the targets."""
        if extra is None:
            return None
        return extra * (batch.num_targets / self.targets * _share_of_mixtures(decoder_of(model)))

    def _part(
        self,
        batch: Batch,
        loss: float,
        extra: Tensor | None,
        experts: Sequence[ExpertUse],
        metrics: Mapping[str, Metric],
    ) -> Part:
        told = extra.item() if extra is not None else 0.0
        return Part(loss, told, experts, metrics, batch.num_targets, batch.ids.numel(), batch.predicted)


@dataclass(frozen=True)
class Mark:
    """A batch that a model was measured on.

    Attributes:
        total: the summed loss.
        metrics: what the objective measures beside it.
    """

    total: float
    metrics: Mapping[str, Metric]


class Exam:
    """Batches that a model is measured on; see `parallel.station.Work`.

    Args:
        objective: what measures.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective

    def context(self, batch: Batch) -> Packed:
        """See `Work`."""
        return context_of(batch)

    def arriving(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Mark]:
        """The summed loss, as a tensor and as it is told."""
        found = self.objective(model, batch)
        return found.total, Mark(found.total.item(), found.metrics)

    def passing(self, model: nn.Module, batch: Batch) -> tuple[None, None]:
        """See `Work`."""
        return None, None


def context_of(batch: Batch) -> Packed:
    """How attention reads a batch: documents that fork, or that lie end to end."""
    forks: Any = getattr(batch, "forks", None)
    return Packed(batch.documents) if forks is None else Forked(forks)


def _share_of_mixtures(decoder: Decoder) -> float:
    """Which share of the whole model's mixtures with an auxiliary loss is here; 1 but in a stage of a pipeline."""
    specs = [block.feed_forward for block in decoder.spec.blocks]
    every = sum(isinstance(spec, MoESpec) and spec.load_balancing_coef > 0 for spec in specs)
    here = [module for module in decoder.modules() if isinstance(module, MixtureOfExperts)]
    return sum(module.load_balancing_coef > 0 for module in here) / every
