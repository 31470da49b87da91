"""The engine's word on a plan: the step that a job would take, taken on tensors without memory, and its peak read off.

What runs is the trainer's own code on PyTorch's own engine (`rehearsal`), as one rank of a group that sends nothing
(`imagined`), on fake tensors (`unknown`), watched by `MemTracker` (`moments`). Operators are PyTorch's for a CPU, not
our own in C++, whose memory nobody tracks: hold it beside a plan for a CPU without them.

A deep model is traced at two depths, and what it takes is as much more as it has more layers: layers come in turns
(one kind, or five of one and one of another), and the deeper of the two has one turn more than the other.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from torch._subclasses.fake_tensor import FakeTensorMode

from intaglio import native
from intaglio.errors import UserError
from intaglio.planning.jobs import JobSpec
from intaglio.planning.layouts import require_possible
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.memory.imagined import imagined_ranks
from intaglio.training.memory.moments import MomentSeen
from intaglio.training.memory.rehearsal import Measured, Rehearsal
from intaglio.training.memory.unknown import Unknown

__all__ = ["Trace", "cut_to", "depths_of", "require_traceable", "trace_job"]

SHALLOW: Final = 6
"""Layers up to which a model is traced whole."""

_LEAST: Final = 3
"""Layers of the less deep of two: a layer between two others is unlike the first and the last."""


@dataclass(frozen=True)
class Trace:
    """What the engine took.

    Attributes:
        moments: of a step, see `moments`; `where` is of the deepest model that was traced.
        states: bytes from step to step: `weights`, `masters`, `gradients`, `optimizer_states`.
        layers: of the model.
        depths: layers of the models that were traced: one, or two that the rest follows from.
    """

    moments: Mapping[str, MomentSeen]
    states: Mapping[str, int]
    layers: int
    depths: tuple[int, ...]

    @property
    def peak(self) -> str:
        """The moment that takes most."""
        return max(self.moments, key=lambda name: self.moments[name].num_bytes)

    @property
    def peak_bytes(self) -> int:
        """Then."""
        return self.moments[self.peak].num_bytes

    @property
    def extrapolated(self) -> bool:
        """Whether it is not the model itself that was traced."""
        return self.depths != (self.layers,)

    def plain(self) -> dict[str, Any]:
        """As JSON: `components` are those of the peak."""
        return {
            "peak_bytes": self.peak_bytes,
            "peak_moment": self.peak,
            "components": dict(self.moments[self.peak].parts),
            "moments": {
                name: {"bytes": one.num_bytes, "components": dict(one.parts), "where": one.where}
                for name, one in self.moments.items()
            },
            "states": dict(self.states),
            "layers": self.layers,
            "traced_layers": list(self.depths),
            "extrapolated": self.extrapolated,
        }


def trace_job(
    spec: DecoderSpec,
    job: JobSpec,
    layout: ParallelSpec = ParallelSpec(),  # noqa: B008 (frozen)
    stage: int = 0,
) -> Trace:
    """Traces a step of a job on one rank of a layout: of those with the same stages the first.

    Args:
        spec: of the model.
        job: what is done.
        layout: of the ranks.
        stage: the rank's number in its pipeline.

    Raises:
        UserError: see `require_traceable`; or the model cannot be laid out so.
    """
    require_traceable(job, layout)
    require_possible(spec, layout, job.sequence)
    depths = depths_of(spec, job, layout)
    seen = [_measured(cut_to(spec, depth), job, layout, stage) for depth in depths]
    if len(seen) == 1:
        return Trace(seen[0].moments, asdict(seen[0].states), spec.num_layers, depths)
    steps = (spec.num_layers - depths[0]) / (depths[1] - depths[0])
    one, other = seen
    states = _further(asdict(one.states), asdict(other.states), steps)
    return Trace(_later(one.moments, other.moments, steps), states, spec.num_layers, depths)


def require_traceable(job: JobSpec, layout: ParallelSpec) -> None:
    """Refuses what the trace cannot step.

    Raises:
        UserError: says what, why and what to trace instead.
    """
    for wrong, what, where, mend in (
        (
            job.job not in ("pretrain", "sft"),
            f"the trace steps language models, and {job.job} needs answers and their scores",
            "--job",
            "trace sft, whose layers, shards and logits are the same",
        ),
        (job.dtype == "float16", "float16 trains on a GPU, and the trace runs without one", "--dtype", "bfloat16"),
        (
            job.chunk is None,
            "the trainer makes the logits of a chunk at a time, never all",
            "--chunk",
            f"trace --chunk {job.tokens}, which is one chunk",
        ),
        (
            layout.offload or job.optimizer == "paged_adamw",
            "the trace sees one memory, and here there are two",
            "--offload" if layout.offload else "--optimizer",
            "trace it without",
        ),
        (
            layout.ep > 1,
            "who gets how many tokens is decided by numbers, and fake tensors have none",
            "--ep",
            "trace it without",
        ),
        (
            native.available(),
            "our own operators are loaded, whose memory nobody tracks",
            "--trace",
            "INTAGLIO_NATIVE=off",
        ),
    ):
        if wrong:
            raise UserError(what, where=where, mend=mend)


def _measured(spec: DecoderSpec, job: JobSpec, layout: ParallelSpec, stage: int) -> Measured:
    rank = stage * (layout.world // layout.pp.ranks)
    before = 2 if layout.tp > 1 and not layout.zero else 1  # when DTensors are first added up, their whole shapes count
    with imagined_ranks(layout, rank) as ranks, FakeTensorMode(allow_non_fake_inputs=True), Unknown():
        return Rehearsal(spec, job, ranks).measure(before)


def depths_of(spec: DecoderSpec, job: JobSpec, layout: ParallelSpec) -> tuple[int, ...]:
    """At how many layers a model is traced: at all that it has, or at two depths that differ by whole turns.

    Stages of a pipeline are balanced over the whole model, which has no turns.
    """
    layers = spec.num_layers
    start, period = _turns(spec.blocks)
    turn = math.lcm(period, job.checkpointing if isinstance(job.checkpointing, int) and job.checkpointing else 1)
    first = start + (layers - start) % turn + turn
    first += -(-max(_LEAST - first, 0) // turn) * turn
    if layout.pp.ranks > 1 or layers <= max(SHALLOW, first + turn):
        return (layers,)
    return first, first + max(turn, 2 // turn * turn)


def _turns(blocks: Sequence[Any]) -> tuple[int, int]:
    """Where layers begin to come in turns, and how many make one: what is shortest together."""
    count = len(blocks)
    found = (
        (start, period)
        for both in range(1, count + 1)
        for start in range(both)
        if all(blocks[i] == blocks[i + (period := both - start)] for i in range(start, count - both + start))
    )
    return next(found)


def cut_to(spec: DecoderSpec, depth: int) -> DecoderSpec:
    """The same model with its first layers only."""
    if depth == spec.num_layers:
        return spec
    cut: DecoderSpec = spec.updated(layers=spec.blocks[:depth], final_norm=spec.final_norm)
    return cut


def _later(ones: Mapping[str, MomentSeen], others: Mapping[str, MomentSeen], steps: float) -> dict[str, MomentSeen]:
    return {
        name: MomentSeen(_further(ones[name].parts, other.parts, steps), other.where)
        for name, other in others.items()
        if name in ones
    }


def _further(ones: Mapping[str, int], others: Mapping[str, int], steps: float) -> dict[str, int]:
    """On from one through the other: so many times as far."""
    names = dict.fromkeys((*ones, *others))
    return {name: round(ones.get(name, 0) + (others.get(name, 0) - ones.get(name, 0)) * steps) for name in names}
