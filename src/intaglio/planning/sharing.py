"""What ranks of dp and cp share out, in time: gathers, gradients, the optimizer's step. No torch.

A layer is gathered while the one before it computes, and its gradient sent while the one before it is differentiated.
So of each phase only what is longer than its computation shows, and the one group that has nothing to hide behind: the
first gathered, the last sent. How often per step, for M micro-batches (`parallel.data`):

    zero   gathered                     sent
    0      never                        once, as an all-reduce
    1      in the first forward         once
    2      in the first forward         with each backward
    3      with each forward, backward  with each backward

What is sent is fp32; replicas of shards (hsdp) all-reduce theirs when it is. What runs beside collectives is slower by
the multiprocessors that these take.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from intaglio.planning.adapters import in_layers, ranks_of, trained_shapes
from intaglio.planning.jobs import JobSpec
from intaglio.planning.shards import Rank
from intaglio.planning.states import tensors_of
from intaglio.planning.traffic import Wires
from intaglio.specs import DecoderSpec, dtype_bytes
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.parallel import ParallelSpec

__all__ = ["shared_seconds"]

_FLOAT = 4


@dataclass(frozen=True)
class _Elements:
    """Of one rank's tensors before they are shared out: of experts and of the rest; and how many groups they are."""

    experts: int
    rest: int
    groups: int

    def __add__(self, other: "_Elements") -> "_Elements":
        groups = max(self.groups, other.groups)
        return _Elements(self.experts + other.experts, self.rest + other.rest, groups)


def shared_seconds(
    spec: DecoderSpec, job: JobSpec, wires: Wires, rank: int, forward: float, backward: float
) -> Mapping[str, float]:
    """Seconds of a step: `gathers` that nothing hides, `overlap` by which computation is slower, `copies`, `optimizer`.

    Args:
        spec: of the model.
        job: its micro-batch is one forward and one backward.
        wires: of the layout.
        rank: of the pipeline.
        forward, backward: seconds of one micro-batch on this rank.
    """
    return _Sharing(spec, job, wires, rank, forward, backward).seconds()


class _Sharing:
    def __init__(
        self, spec: DecoderSpec, job: JobSpec, wires: Wires, rank: int, forward: float, backward: float
    ) -> None:
        self.job, self.wires, self.layout, self.assumed = job, wires, wires.layout, wires.assumed
        self.forward, self.backward = forward, backward
        self.memory = wires.device.bandwidth * wires.assumed.memory
        adapter = job.adapter.model_dump_json() if job.adapter else None
        everything, trained = _elements(spec, adapter, job.scores, _shape(self.layout), rank)
        self.trained = trained
        self.gathered = everything if self.layout.zero == 3 else trained
        self.count = self.layout.pp.micro_batches or job.accumulation

    def seconds(self) -> Mapping[str, float]:
        zero = self.layout.zero
        gather, sent = (self._gather() if zero else 0.0), self._sent()
        forwards, backwards = self._often(zero)
        exposed = forwards * self._shown(gather, self.forward, self.gathered)
        if zero == 3:
            exposed += backwards * self._shown(gather + sent, self.backward, self.trained)
            hidden = backwards * min(gather + sent, self.backward)
        else:
            exposed += backwards * self._shown(sent, self.backward, self.trained)
            hidden = backwards * min(sent, self.backward)
        hidden += forwards * min(gather, self.forward)
        copies = self._copies(forwards + backwards * (zero == 3), backwards)
        overlap = hidden * self.assumed.overlap
        return {"gathers": exposed, "overlap": overlap, "copies": copies, "optimizer": self._optimizer()}

    def _copies(self, gathers: int, sums: int) -> float:
        """Into the tensors that are computed with, and into what is sent (at zero 0 and back)."""
        if self.wires.shards.size == 1:
            return 0.0
        gathered = gathers * self.assumed.gather_copies * dtype_bytes(self.job.dtype)
        sent = self.assumed.sent_bytes if self.layout.zero else 4 * _FLOAT
        moved = (self.gathered.rest + self.gathered.experts) * gathered
        moved += (self.trained.rest + self.trained.experts) * sums * sent
        return moved / self.memory

    def _often(self, zero: int) -> tuple[int, int]:
        """Gathers in forwards, and sums of gradients, of a step."""
        return (self.count if zero == 3 else int(zero > 0)), (self.count if zero >= 2 else 1)

    def _shown(self, seconds: float, beside: float, elements: _Elements) -> float:
        """What of a phase's collectives its computation does not hide."""
        return max(seconds - beside, seconds / max(elements.groups, 1)) if seconds else 0.0

    def _gather(self) -> float:
        itemsize, wires = dtype_bytes(self.job.dtype), self.wires
        quantized = self.job.quantization
        rest = self.gathered.rest * itemsize
        if quantized is not None and self.layout.zero == 3:
            rest = quantized.num_bytes(self.gathered.rest)
        seconds = wires.gather(wires.shards, rest, self.gathered.groups)
        seconds += wires.gather(wires.expert_shards, self.gathered.experts * itemsize, 1)
        waiting = (rest + self.gathered.experts * itemsize) / self.layout.shards
        return seconds + (waiting / self.assumed.host_link if self.layout.offload else 0.0)

    def _sent(self) -> float:
        wires, elements = self.wires, self.trained
        if not self.layout.zero:
            spread = wires.reduce(wires.shards, elements.rest * _FLOAT, elements.groups)
            return spread + wires.reduce(wires.expert_shards, elements.experts * _FLOAT, 1)
        seconds = wires.gather(wires.shards, elements.rest * _FLOAT, elements.groups)
        seconds += wires.gather(wires.expert_shards, elements.experts * _FLOAT, 1)
        kept = (elements.rest + elements.experts) * _FLOAT / self.layout.shards
        return seconds + wires.reduce(wires.replicas, kept, elements.groups)

    def _optimizer(self) -> float:
        """AdamW of what this rank keeps, and gradients added up over micro-batches."""
        assumed, layout = self.assumed, self.layout
        whole = self.trained.rest + self.trained.experts
        kept = self.trained.rest / layout.shards + self.trained.experts / max(layout.shards // layout.ep, 1)
        summed = (whole if layout.zero < 2 else kept) * assumed.accumulate_bytes * self.count / self.memory
        if layout.offload:
            return summed + kept * (2 * _FLOAT / assumed.host_link + assumed.optimizer_bytes / assumed.host_memory)
        return summed + kept * assumed.optimizer_bytes / self.memory


def _shape(layout: ParallelSpec) -> ParallelSpec:
    """The part of a layout that says what a rank computes with."""
    pipeline = layout.pp.updated(micro_batches=None)
    return ParallelSpec(dp=layout.ep, ep=layout.ep, tp=layout.tp, pp=pipeline)


@lru_cache(maxsize=1024)
def _elements(
    spec: DecoderSpec, adapter: str | None, scores: bool, layout: ParallelSpec, rank: int
) -> tuple[_Elements, _Elements]:
    """Of a rank: all, and those that train; the adapter is written out, as its mappings have no hash."""
    lora = None if adapter is None else LoRASpec.model_validate_json(adapter)
    shapes = None if lora is None else trained_shapes(spec, lora, ranks_of(spec, lora))
    tensors = tensors_of(spec, layout, Rank(pp=rank), trained=shapes, scores=scores)
    trained = _counted(tensors.trained)
    return (trained, trained) if lora is None else (_counted(tensors.computed) + trained, trained)


def _counted(shapes: Mapping[str, tuple[int, ...]]) -> _Elements:
    experts = sum(prod(shape) for name, shape in shapes.items() if ".experts." in name)
    groups = {name.split(".")[1] if in_layers(name) else "ends" for name in shapes}
    return _Elements(experts, sum(map(prod, shapes.values())) - experts, len(groups) + 1)
