"""A model on many ranks beside one on a single process: the same weights, batches and steps, in float64."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from intaglio.models.decoder import Decoder
from intaglio.models.init import init_weights
from intaglio.parallel.gradients import clip_gradients, gradient_norm
from intaglio.specs import DecoderSpec
from intaglio.training.batching.batches import IGNORE, Batch
from intaglio.training.objectives.objective import Objective

__all__ = ["CLOSE", "Lesson", "batches", "made", "taught", "whole"]

CLOSE = 1e-9


def made(spec: DecoderSpec) -> Decoder:
    """A decoder in fp64 whose norms and biases are random too."""
    model = Decoder(spec)
    init_weights(model, 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.double()


def batches(vocabulary: int, count: int, documents: tuple[int, ...] = (7, 1, 11, 4)) -> list[Batch]:
    """Packed rows whose length no number of ranks divides; a third of the tokens are targets."""
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(vocabulary, (count, 1, sum(documents)), generator=generator)
    return [_batch(ids, documents) for ids in rows]


def _batch(ids: Tensor, documents: tuple[int, ...]) -> Batch:
    labels = torch.cat((ids[:, 1:], ids[:, :1]), dim=1)
    labels[:, torch.arange(ids.shape[1]) % 3 > 0] = IGNORE
    positions = torch.cat([torch.arange(length) for length in documents])[None]
    return Batch(ids, positions, list(documents), labels, int((labels != IGNORE).sum()), ["here"] * len(documents))


def whole(x: Tensor) -> Tensor:
    """All of a tensor that may lie in pieces."""
    full: Tensor = x.full_tensor() if hasattr(x, "full_tensor") else x
    return full.detach().clone()


@dataclass(frozen=True)
class Lesson:
    """What came of some steps.

    Attributes:
        logits: of the first batch.
        by_logits: the gradients of a sum of these; where ranks share it, each counts by its targets.
        by_loss: the gradients of the first batch's loss.
        norms: of the gradients of each step.
        parameters: at the end.
    """

    logits: Tensor
    by_logits: dict[str, Tensor]
    by_loss: dict[str, Tensor]
    norms: list[float]
    parameters: dict[str, Tensor]

    def gap(self, other: "Lesson") -> dict[str, float]:
        """The largest difference of each."""
        return {
            "logits": float((self.logits - other.logits).abs().max()),
            "by logits": _gap(self.by_logits, other.by_logits),
            "by loss": _gap(self.by_loss, other.by_loss),
            "norms": max(abs(one - two) for one, two in zip(self.norms, other.norms, strict=True)),
            "parameters": _gap(self.parameters, other.parameters),
        }


def _gap(ones: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    assert ones.keys() == others.keys(), ones.keys() ^ others.keys()
    return max(float((ones[name] - others[name]).abs().max()) for name in ones)


def taught(
    model: Decoder,
    objective: Objective,
    steps: Sequence[Sequence[Batch]],
    *,
    targets: Sequence[float] = (),
    joined: Callable[[nn.Module], None] = lambda model: None,
    begin: Callable[[bool], None] = lambda last: None,
) -> Lesson:
    """AdamW, clipped.

    Args:
        model: trained in place.
        objective: what is minimised.
        steps: the micro-batches of each on this rank.
        targets: of each step on all ranks; those of the micro-batches unless they are given.
        joined: sums the gradients over ranks that read other batches.
        begin: is told before each micro-batch whether it is the last of its step.
    """
    counts = list(targets) or [sum(batch.num_targets for batch in batches) for batches in steps]
    ids = steps[0][0].ids
    begin(True)
    logits = model(ids)
    slopes = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view(logits.shape)
    ((logits * slopes).sum() * (sum(batch.num_targets for batch in steps[0]) / counts[0])).backward()
    joined(model)
    by_logits = _gradients(model)
    _backward(model, objective, steps[0], counts[0], begin)
    joined(model)
    by_loss, norms = _gradients(model), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, foreach=False)
    for batches, count in zip(steps, counts, strict=True):
        _backward(model, objective, batches, count, begin)
        joined(model)
        norm = gradient_norm(model.parameters())
        clip_gradients(model.parameters(), 0.5, norm)
        norms.append(float(norm))
        optimizer.step()
        optimizer.zero_grad()
    parameters = {name: whole(p) for name, p in model.named_parameters()}
    return Lesson(logits.detach(), by_logits, by_loss, norms, parameters)


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    """What parameters have, which then have none."""
    found = {name: whole(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def _backward(
    model: nn.Module,
    objective: Objective,
    batches: Sequence[Batch],
    targets: float,
    begin: Callable[[bool], None],
) -> None:
    """As the loop does it."""
    for batch in batches:
        begin(batch is batches[-1])
        found = objective(model, batch)
        total = found.total / targets
        (total if found.extra is None else total + found.extra * (batch.num_targets / targets)).backward()
