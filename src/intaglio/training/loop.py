"""The one loop. It knows a model, an objective, a stream of batches and optimizers, and nothing else.

A step is a few micro-batches: each one's summed loss is divided by the targets of the whole step, so that splitting a
step changes nothing; gradients meet in the fp32 masters; clip, step, publish. In float16 the loss is scaled, and a
step that overflows is skipped.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from intaglio.errors import UserError
from intaglio.evaluation.metrics import bits_per_byte
from intaglio.training.batching.batches import IGNORE, Batch, BatchStream
from intaglio.training.lesson import Exam, Lesson, Part
from intaglio.training.objectives.metrics import joined
from intaglio.training.objectives.mixtures import ExpertUse, joined_use
from intaglio.training.objectives.objective import Objective
from intaglio.training.processes.ranks import ALONE, Ranks
from intaglio.training.stepping.master import MasterWeights
from intaglio.training.stepping.scaler import LossScaler
from intaglio.training.stepping.schedule import ScheduleSpec

__all__ = ["Evaluation", "Loop", "NotFinite", "Step", "evaluate"]


class NotFinite(UserError):
    """A run diverged: its loss or its gradient is no finite number any more."""


@dataclass(frozen=True)
class Step:
    """What one optimizer step was.

    Attributes:
        number: from 1.
        loss: nats per target.
        extra: the auxiliary loss (balance), 0 without one.
        grad_norm: before clipping.
        learning_rate: of the first group.
        tokens: that went through the model, all of them real.
        targets: what the loss is a mean over: tokens with a label, documents, or pairs by their weight.
        seconds: it took.
        experts: how each mixture of experts was used, layer by layer.
        loss_scale: that the loss was multiplied by; None where none is needed.
        skipped: a scaled gradient overflowed (`grad_norm` is not finite) and no weight changed.
        metrics: what the objective measures beside its loss, by name.
        predicted: tokens that went through the output matrix.
    """

    number: int
    loss: float
    extra: float
    grad_norm: float
    learning_rate: float
    tokens: int
    targets: float
    seconds: float
    experts: tuple[ExpertUse, ...] = ()
    loss_scale: float | None = None
    skipped: bool = False
    metrics: Mapping[str, float] = field(default_factory=dict)
    predicted: int = 0


class Loop:
    """Steps a model.

    Args:
        model: trained in place; its masters are `masters`.
        masters: see `MasterWeights`.
        objective: what is minimised.
        stream: where batches come from.
        optimizers: over the masters.
        schedule: of the learning rate.
        steps: of the whole run; the schedule looks at it.
        accumulation: micro-batches of a step.
        clip: see `Recipe`.
        scaler: of the loss, for a model that computes in float16.
        ranks: other processes that step the same model.
    """

    def __init__(
        self,
        model: nn.Module,
        masters: MasterWeights,
        objective: Objective,
        stream: BatchStream,
        optimizers: Sequence[torch.optim.Optimizer],
        schedule: ScheduleSpec,
        *,
        steps: int,
        accumulation: int = 1,
        clip: float = 1.0,
        scaler: LossScaler | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        self.model, self.masters, self.objective, self.stream = model, masters, objective, stream
        self.optimizers, self.schedule = optimizers, schedule
        self.steps, self.accumulation, self.clip = steps, accumulation, clip
        self.scaler, self.ranks = scaler, ranks
        self.device = ranks.device(model)
        self.done = 0
        self.tokens_seen = 0

    def run(self, each: Callable[[Step], bool]) -> None:
        """Steps until the end, or until `each` says so by returning False."""
        self.model.train()
        go_on = True
        while go_on and self.done < self.steps:
            with self.ranks.named(f"step {self.done + 1}"):
                go_on = each(self.step())

    def step(self) -> Step:
        """One optimizer step.

        Raises:
            NotFinite: the loss or the gradient is none; names the step and the rows of its batches.
        """
        start = time.perf_counter()
        batches = self.stream.step(self.accumulation)
        targets = sum(self.ranks.gather(sum(batch.num_targets for batch in batches)))
        self.masters.zero_grad()
        parts = self._parts(batches, targets)
        loss, extra = sum(part.loss for part in parts), sum(part.extra for part in parts)
        tokens = [part.tokens for part in parts]
        scale = self.scaler.scale if self.scaler else None
        norm = self._clip()
        skipped = self._overflowed(loss, norm)
        if not skipped:
            self._require_finite(loss, norm, batches)
        rate = self._update(skipped)
        self.done += 1
        self.tokens_seen += sum(tokens)
        return Step(
            number=self.done,
            loss=loss,
            extra=extra,
            grad_norm=norm,
            learning_rate=rate,
            tokens=sum(tokens),
            targets=targets,
            seconds=time.perf_counter() - start,
            experts=joined_use([part.experts for part in parts], [part.targets for part in parts], tokens),
            loss_scale=scale,
            skipped=skipped,
            metrics=joined(part.metrics for part in parts),
            predicted=sum(part.predicted for part in parts),
        )

    def _parts(self, batches: Sequence[Batch], targets: float) -> list[Part]:
        """Adds up the gradients of a step; returns what every micro-batch of it was, those of other ranks too."""
        lesson = Lesson(self.objective, targets or 1, self.scaler.scale if self.scaler else 1.0)
        mine = self.ranks.learn(self.model, lesson, [batch.to(self.device) for batch in batches])
        self.ranks.sum_gradients(self.masters)
        return [part for rank in self.ranks.gather(mine) for part in rank]

    def _clip(self) -> float:
        """The norm of the gradients, which are those of the loss itself from here on."""
        parameters = self.masters.parameters()
        if self.scaler:
            for gradient in (p.grad for p in parameters if p.grad is not None):
                gradient.div_(self.scaler.scale)
        return self.ranks.clip(parameters, self.clip or math.inf)

    def _overflowed(self, loss: float, norm: float) -> bool:
        """Whether the scale is to blame for a gradient that is not finite, so that a smaller one may help."""
        if self.scaler is None or self.scaler.exhausted:
            return False
        return math.isfinite(loss) and not math.isfinite(norm)

    def _update(self, skipped: bool) -> float:
        factor = self.schedule.factor(self.done, self.steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * factor
            if not skipped:
                optimizer.step()
        self.masters.publish()
        if self.scaler:
            self.scaler.update(skipped)
        return float(self.optimizers[-1].param_groups[0]["lr"])

    def _require_finite(self, loss: float, norm: float, batches: Sequence[Batch]) -> None:
        if math.isfinite(loss) and math.isfinite(norm):
            return
        rows = [
            where for rank in self.ranks.gather([one for batch in batches for one in batch.wheres]) for where in rank
        ]
        shown = ", ".join(rows[:6]) + (f" and {len(rows) - 6} more" if len(rows) > 6 else "")
        what = f"the {'gradient' if math.isfinite(loss) else 'loss'} of step {self.done + 1} is not finite"
        raise NotFinite(what, where=shown, mend="look at these rows, or lower the learning rate")


@dataclass(frozen=True)
class Evaluation:
    """A model on held-out batches.

    Attributes:
        loss: nats per target.
        bits_per_byte: of the text that the targets spell: comparable between tokenizers. A document's first token is
            nobody's target, so neither its bits nor its bytes count.
        metrics: what the objective measures beside its loss, by name.
    """

    loss: float
    bits_per_byte: float | None
    metrics: Mapping[str, float]

    @property
    def accuracy(self) -> float | None:
        """Share of targets that were the likeliest; None where the objective does not tell."""
        return self.metrics.get("accuracy")

    def lines(self) -> dict[str, float]:
        """What the log says of it."""
        values = {"loss": self.loss, "bits_per_byte": self.bits_per_byte, **self.metrics}
        return {f"eval_{name}": value for name, value in values.items() if value is not None}


@torch.no_grad()
def evaluate(
    model: nn.Module,
    objective: Objective,
    batches: Sequence[Batch],
    token_bytes: Tensor | None = None,
    ranks: Ranks = ALONE,
) -> Evaluation:
    """The model's loss on `batches`, without dropout or noise; it trains on afterwards if it did before.

    Args:
        model, objective, batches: what is measured, by what, on what.
        token_bytes: (V,) bytes that each token spells, for bits per byte.
        ranks: that share the batches.
    """
    training, device = model.training, ranks.device(model)
    model.eval()
    mine = [batch.to(device) for batch in batches[ranks.number :: ranks.count]]
    fill = [batches[0].to(device)] if len(mine) * ranks.count < len(batches) else []  # nobody must compute alone
    marks = ranks.examine(model, Exam(objective), [*mine, *fill])[: len(mine)]
    model.train(training)
    nats = sum(ranks.gather(sum(mark.total for mark in marks)))
    targets = sum(batch.num_targets for batch in batches) or 1
    spelt = sum(_bytes_of(batch, token_bytes) for batch in batches) if token_bytes is not None else 0
    return Evaluation(
        loss=nats / targets,
        bits_per_byte=bits_per_byte(nats, spelt) if spelt else None,
        metrics=joined(told for rank in ranks.gather([mark.metrics for mark in marks]) for told in rank),
    )


def _bytes_of(batch: Batch, token_bytes: Tensor) -> int:
    return int(token_bytes[batch.labels[batch.labels != IGNORE]].sum())
