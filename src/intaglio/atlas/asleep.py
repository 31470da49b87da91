"""How long the ranks of a pipeline wait: PyTorch's engine running a schedule with stages that sleep.

Every rank sleeps as long as another: a forward of all its stages takes so long, and so do both halves of the backward.
Sleeping takes no core, so that two cores show what many devices would wait. What is measured above the simulation is
the engine's own: Python and gloo's small messages, the more of it the more and shorter the actions are.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from intaglio.parallel.pipeline import engine
from intaglio.planning.schedules import Action, Kind, schedule
from intaglio.planning.simulation import Run, Slot
from intaglio.planning.stages import own_stages
from intaglio.specs.parallel import PipelineSpec

__all__ = ["slept"]

_Slots = list[tuple[Action, float, float]]


class _Asleep(PipelineStage):
    """A stage of one number that takes its time, and writes down when."""

    def __init__(self, number: int, stages: int, seconds: float, slots: _Slots) -> None:
        like = torch.empty(1, 1, device="meta", requires_grad=True)
        super().__init__(nn.Linear(1, 1), number, stages, torch.device("cpu"), input_args=like, output_args=like)
        self._seconds, self._slots = seconds, slots

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **more: Any) -> Any:
        return self._slept(
            "F", fwd_chunk_id, lambda: super(_Asleep, self).forward_one_chunk(fwd_chunk_id, *args, **more)
        )

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **more: Any) -> None:
        kind: Kind = "B" if more.get("full_backward", True) else "I"
        self._slept(kind, bwd_chunk_id, lambda: super(_Asleep, self).backward_one_chunk(bwd_chunk_id, *args, **more))

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **more: Any) -> None:
        self._slept(
            "W", bwd_chunk_id, lambda: super(_Asleep, self).backward_weight_one_chunk(bwd_chunk_id, *args, **more)
        )

    def _slept(self, kind: Kind, number: int, compute: Callable[[], Any]) -> Any:
        start = time.monotonic()
        found = compute()
        length = self._seconds * (2 if kind == "B" else 1)
        time.sleep(max(0.0, start + length - time.monotonic()))
        self._slots.append((Action(kind, self.stage_index, number), start, time.monotonic()))
        return found


def slept(spec: PipelineSpec, count: int, seconds: float, rounds: int = 1) -> Run:
    """On each rank of a group: the quickest of some steps, after one that is not counted.

    Args:
        spec: as many ranks as the group has.
        count: micro-batches of a step.
        seconds: of a forward through all stages of a rank.
        rounds: steps that are counted.

    Returns:
        The same on all ranks; times are from the first action of any.
    """
    slots: _Slots = []
    own = own_stages(spec, dist.get_rank())
    stages = [_Asleep(number, spec.stages, seconds / spec.chunks_a_rank, slots) for number in own]
    made = engine(spec, stages, count, loss_fn=_loss, scale_grads=False)
    runs = []
    for _ in range(1 + rounds):
        slots.clear()
        dist.barrier()
        rows = torch.zeros(count, 1)
        made.step(*((rows,) if 0 in own else ()), target=rows, return_outputs=False)
        every: list[Any] = [None] * spec.ranks
        dist.all_gather_object(every, slots)
        runs.append(_run(spec, count, every))
    return min(runs[1:], key=lambda run: run.makespan)


def _run(spec: PipelineSpec, count: int, every: list[_Slots]) -> Run:
    begin = min(start for row in every for _, start, _ in row)
    rows = (
        tuple(Slot(rank, action, start - begin, end - begin) for action, start, end in row)
        for rank, row in enumerate(every)
    )
    return Run(schedule(spec, count), tuple(rows))


def _loss(out: Tensor, target: Tensor) -> Tensor:
    return out.sum()
