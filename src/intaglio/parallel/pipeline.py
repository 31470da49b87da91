"""A model in stages on several ranks, run by PyTorch's own engine (`torch.distributed.pipelining`).

All ranks of a pipeline read the same micro-batches. A step sends them through the stages in the order of the schedule,
forwards and backwards, and leaves the gradients of this rank's parameters where a single process would have them.

Legend: M micro-batches, R room for the tokens of one, E features.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier
from intaglio.parallel.data import shard
from intaglio.parallel.mesh import SHARDS, part
from intaglio.parallel.stages import rank_module, split
from intaglio.parallel.station import MicroBatch, Station, Work
from intaglio.parallel.tied import TiedCopies
from intaglio.planning.schedules import schedule
from intaglio.planning.shards import chunk
from intaglio.planning.stages import ROOM_GRAIN, own_stages
from intaglio.specs.parallel import ParallelSpec, PipelineSpec, Schedule

__all__ = ["Pipeline", "engine", "pipeline_of"]

_NAMES: Final[Mapping[Schedule, str]] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
    "zbv_zero_bubble": "ZBVZeroBubble",
    "dual_pipe_v": "DualPipeV",
}


class Pipeline:
    """A rank of a pipeline, with its stages.

    Args:
        model: the whole one, with its adapters and its tensor parallelism; taken over. What other ranks hold of it is
            free once nobody else refers to it.
        spec: ranks, schedule and chunks.
        group: the ranks of this pipeline; those of other replicas have their own.
        dtype: in which features go from stage to stage: that in which the model computes.
        device: of this rank.
        tokens: how many of a micro-batch's tokens are on this rank between two layers, given how many it has.

    Attributes:
        module: what this rank holds of the model, by the whole model's names.
        stations: the stages, which the engine calls; what wraps modules (FSDP) wraps these.
        after_weights: called whenever gradients of weights have been added without `backward`'s own hooks.

    Raises:
        UserError: the model cannot be cut so.
    """

    def __init__(
        self,
        model: Decoder | SequenceClassifier,
        spec: PipelineSpec,
        group: dist.ProcessGroup,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        tokens: Callable[[int], int] = int,
    ) -> None:
        self.spec, self.group, self.device = spec, group, torch.device(device)
        self.own = own_stages(spec, dist.get_rank(group))
        parts = split(model, spec.stages)
        self.module = rank_module(model, spec.stages, self.own)
        self.stations = [Station(parts[number], dtype, tokens) for number in self.own]
        self._last = next(rank for rank in range(spec.ranks) if spec.stages - 1 in own_stages(spec, rank))
        self.tied = TiedCopies(group, self._last) if model.spec.tie_embeddings else None
        self.after_weights: Callable[[], None] = _nothing
        self._size = model.spec.hidden_size
        self._engines: dict[int, Any] = {}

    def shard(self, mesh: DeviceMesh, spec: ParallelSpec, dtype: torch.dtype) -> None:
        """Shares the stages out over the ranks of data parallelism, see `data.shard`.

        Raises:
            UserError: a tied matrix is in two stages of one rank, which FSDP2 would shard twice.
        """
        if not spec.zero:
            return
        if self.tied and self._last == 0:
            raise UserError(
                f"{self.spec.schedule} has the first and the last stage on one rank, and both use the tied embeddings, "
                "which zero would have to share out twice",
                where="parallel.pp",
                mend="take zero 0, or another schedule",
            )
        for station in self.stations:
            shard(station.model, mesh, spec, dtype)
            # no parameters are left for it: the engine wants to see that the outermost module is FSDP2's
            fully_shard(station, mesh=part(mesh, SHARDS), reshard_after_forward=False)

    def counts(self, name: str) -> bool:
        """Whether this rank answers for one of its parameters in sums over the pipeline, and writes it down: of the
        copies of a tied matrix one is to be counted."""
        return self.tied is None or self.tied.counts(name)

    def step(self, batches: Sequence[MicroBatch], work: Work) -> list[list[Any]]:
        """Forward and backward of the micro-batches of a step; gradients are added to those that parameters have.

        Args:
            batches: the same on all ranks of the pipeline.
            work: what is done with them.

        Returns:
            for each micro-batch what `work` told of it in each stage, on every rank.

        Raises:
            UserError: the schedule cannot be run with so many micro-batches.
        """
        self.run(batches, work)
        return self._told(len(batches))

    def run(self, batches: Sequence[MicroBatch], work: Work) -> None:
        """The same, without asking other ranks what they were told."""
        numbers = self._begin(batches, work)
        self._engine(len(batches)).step(*self._sent(numbers), target=numbers, return_outputs=False, number=numbers)

    @torch.no_grad()
    def evaluate(self, batches: Sequence[MicroBatch], work: Work) -> list[list[Any]]:
        """The same without backward, for any number of micro-batches."""
        found: list[list[Any]] = []
        count = 2 * self.spec.ranks  # which no schedule refuses
        for start in range(0, len(batches), count):
            some = list(batches[start : start + count])
            numbers = self._begin([*some, *some[-1:] * (count - len(some))], work)
            self._engine(count).eval(*self._sent(numbers), target=numbers, return_outputs=False, number=numbers)
            found += self._told(len(some))
        return found

    def _begin(self, batches: Sequence[MicroBatch], work: Work) -> Tensor:
        """Hands the micro-batches out; their numbers (M,), which are what the engine is given."""
        for station in self.stations:
            station.batches, station.work, station.told = batches, work, {}
        self._make_room(max(self.stations[0].tokens(batch.ids.shape[1]) for batch in batches))
        return torch.arange(len(batches))

    def _make_room(self, tokens: int) -> None:
        """The engine's buffers are made anew where a micro-batch has more tokens than any before."""
        if tokens > self.stations[0].room:
            for station in self.stations:
                station.room = -(-tokens // ROOM_GRAIN) * ROOM_GRAIN
            self._engines = {}

    def _sent(self, numbers: Tensor) -> tuple[Tensor, ...]:
        """What the first stage is called with, as others are with what arrives."""
        return (numbers,) if 0 in self.own else ()

    def _engine(self, micro_batches: int) -> Any:
        if micro_batches not in self._engines:
            self._engines[micro_batches] = self._made(micro_batches)
        return self._engines[micro_batches]

    def _made(self, micro_batches: int) -> Any:
        schedule(self.spec, micro_batches)  # refuses what the engine would
        stages = [self._stage(number, station) for number, station in zip(self.own, self.stations, strict=True)]
        settings: dict[str, Any] = {"loss_fn": _as_it_is, "scale_grads": False}
        return engine(self.spec, stages, micro_batches, **settings)

    def _stage(self, number: int, station: Station) -> PipelineStage:
        first, last = number == 0, number == self.spec.stages - 1
        like: dict[str, Any] = {"dtype": station.dtype, "device": "meta", "requires_grad": True}
        features = torch.empty(1, station.room, self._size, **like)  # (1, R, E)
        return _Stage(
            station,
            number,
            self.spec.stages,
            self.device,
            input_args=torch.empty(1, dtype=torch.int64, device="meta") if first else features,
            output_args=torch.empty((), **like) if last else features,
            group=self.group,
            told=lambda: self.after_weights(),
        )

    def _told(self, count: int) -> list[list[Any]]:
        """What was told of each micro-batch, stage by stage, gathered from all ranks."""
        mine = {number: station.told for number, station in zip(self.own, self.stations, strict=True)}
        every: list[dict[int, dict[int, Any]]] = [{} for _ in range(self.spec.ranks)]
        dist.all_gather_object(every, mine, group=self.group)
        stages = {number: told for rank in every for number, told in rank.items()}
        return [[stages[number][place] for number in range(self.spec.stages)] for place in range(count)]


def engine(spec: PipelineSpec, stages: Sequence[PipelineStage], micro_batches: int, **settings: Any) -> Any:
    """PyTorch's own schedule of a rank.

    Args:
        spec: says which.
        stages: of the rank.
        micro_batches: of a step.
        settings: see `torch.distributed.pipelining.schedules`.
    """
    kind: Any = get_schedule_class(_NAMES[spec.schedule])
    return kind(list(stages) if spec.chunks_a_rank > 1 else stages[0], micro_batches, **settings)


def pipeline_of(
    model: Decoder | SequenceClassifier,
    mesh: DeviceMesh,
    spec: ParallelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Pipeline:
    """The pipeline of a layout, not yet sharded.

    Args:
        model: after `tensor.parallelize`.
        mesh: see `build_mesh`.
        spec: the layout.
        dtype: that in which the model computes.
        device: of this rank.

    Raises:
        UserError: see `Pipeline`.
    """
    pieces = spec.tp if spec.sequence_parallel else 1
    rank = mesh.get_local_rank("tp") if pieces > 1 else 0
    return Pipeline(
        model,
        spec.pp,
        mesh.get_group("pp"),
        dtype=dtype,
        device=device,
        tokens=lambda length: chunk(length, pieces, rank),
    )


class _Stage(PipelineStage):
    """The engine's stage. It adds the weights' gradients by hand where a backward is done in two halves, so that hooks
    of parameters do not see them; it says so. And in a V two stages of a rank hand gradients to each other, which the
    engine does where there are none too.

    Args:
        told: called then.
    """

    def __init__(self, *args: Any, told: Callable[[], None], **more: Any) -> None:
        super().__init__(*args, **more)
        self._after = told

    def get_local_bwd_output(self, mb_index: int) -> Any:
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        self._after()


def _as_it_is(loss: Tensor, number: Tensor) -> Tensor:
    """The last stage makes the loss itself, as the objective wants the model and not only what comes out of it."""
    return loss


def _nothing() -> None:
    """There are no hooks that would have missed anything."""
