"""A step of training without data and without weights that mean anything: what is built is what the trainer builds.

The loop, the masters, the optimizer, shards, checkpointing and the chunked loss are the trainer's own; only the batch
is made up: every token is a target, sequences are as long as they may be.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._guards import active_fake_mode

from intaglio.adapters.attach import attach
from intaglio.adapters.quantize import quantize
from intaglio.checkpoints.load import DTYPES
from intaglio.models.decoder import Decoder
from intaglio.parallel.measure import StateBytes, state_bytes
from intaglio.planning.jobs import JobSpec
from intaglio.specs import DecoderSpec
from intaglio.training.batching.batches import Batch
from intaglio.training.loop import Loop
from intaglio.training.memory.moments import Moments, MomentSeen
from intaglio.training.memory.unknown import answer_within
from intaglio.training.objectives.language_model import LanguageModel
from intaglio.training.processes.ranks import Ranks
from intaglio.training.processes.staged import Staged
from intaglio.training.stepping.master import MasterWeights
from intaglio.training.stepping.optimizer import OptimizerSpec, build_optimizers
from intaglio.training.stepping.schedule import ScheduleSpec
from intaglio.training.stepping.tricks import recompute_activations

__all__ = ["Measured", "Rehearsal"]


@dataclass(frozen=True)
class Measured:
    """What a step took.

    Attributes:
        moments: see `moments`.
        states: what stays from step to step.
    """

    moments: Mapping[str, MomentSeen]
    states: StateBytes


class Rehearsal:
    """A job's loop.

    Args:
        spec: of the model.
        job: pretraining or fine-tuning, whose loss is taken in chunks.
        ranks: among which it runs.
        device: where weights are made.
    """

    def __init__(self, spec: DecoderSpec, job: JobSpec, ranks: Ranks, device: str = "cpu") -> None:
        assert job.chunk is not None, "the trainer takes its loss in chunks"
        model, dtype = _model(spec, job, device)
        masters, objective = ranks.lay_out(model, dtype, lambda: LanguageModel(job.chunk or 0))
        self.model, self.masters = model, masters
        self.optimizers = build_optimizers(OptimizerSpec(kind=job.optimizer), masters.masters)
        if active_fake_mode() is not None:
            answer_within(model.layers)
        if job.checkpointing:
            recompute_activations(model, job.checkpointing)
        self.batch = _batch(job)
        self.loop = Loop(
            model,
            masters,
            objective,
            _Same(self.batch),  # type: ignore[arg-type]
            self.optimizers,
            ScheduleSpec(),
            steps=2,
            accumulation=job.accumulation,
            ranks=ranks,
        )
        stations = ranks.pipeline.stations if isinstance(ranks, Staged) else None
        self._decoders = [model] if stations is None else [station.decoder for station in stations]
        model.train()

    def measure(self, before: int = 1) -> Measured:
        """Takes some steps `before` one that is measured: what stays is there then."""
        for _ in range(before):
            self.loop.step()
        masters = self.masters.parameters()
        states = state_bytes(self.masters.model, masters, self.optimizers)
        batch = (self.batch.ids, self.batch.positions, self.batch.labels)
        tracker = Moments(self.masters.model, nn.ParameterList(masters), *self.optimizers, *batch)
        with tracker.watching(self._decoders), _told_of_sums(self.loop.ranks, tracker):
            self.loop.step()
        return Measured(tracker.seen, states)


@contextmanager
def _told_of_sums(ranks: Ranks, tracker: Moments) -> Iterator[None]:
    """What follows the last backward is another moment."""
    summed = ranks.sum_gradients

    def then(masters: MasterWeights) -> None:
        tracker.moment = "optimizer"
        summed(masters)

    vars(ranks)["sum_gradients"] = then
    try:
        yield
    finally:
        del vars(ranks)["sum_gradients"]


class _Same:
    """A stream of one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def step(self, accumulation: int) -> list[Batch]:
        return [self._batch] * accumulation


def _model(spec: DecoderSpec, job: JobSpec, device: str) -> tuple[Decoder, torch.dtype]:
    """As a run starts from it, and what its masters are made for."""
    dtype = DTYPES[job.dtype]
    if job.adapter is None:
        with torch.device(device):
            return Decoder(spec), dtype
    with _made_in(dtype), torch.device(device):
        model = Decoder(spec)
    if job.quantization is not None:
        quantize(model, job.quantization)
    attach(model, job.adapter)
    return model, torch.float32


@contextmanager
def _made_in(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _batch(job: JobSpec) -> Batch:
    """A row of documents (1, N), every place of which has a target."""
    ids, count = torch.zeros((1, job.tokens), dtype=torch.int64), len(job.lengths)
    positions: Tensor = torch.arange(job.sequence).repeat(count)[None]
    return Batch(ids, positions, list(job.lengths), ids.clone(), job.tokens, ["nowhere"] * count)
