"""How long the ranks of a pipeline wait: PyTorch's engine with stages that sleep, beside the simulation of its tables.

Every rank sleeps as long as another: a forward of all its stages takes `--milliseconds`, and so do both halves of the
backward. The bubble is the share of the time from the first action to the last of any rank in which a rank does not
sleep. What is measured above the simulation is the engine's own: Python and gloo's small messages, the more of
it the more and shorter the actions are. `--timeline FOLDER` draws what was measured.
"""

import argparse
import os
import socket
import time
from pathlib import Path
from typing import Any, get_args

import torch
import torch.distributed as dist
from _timing import report
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.multiprocessing.spawn import spawn

from intaglio.parallel.pipeline import engine
from intaglio.planning.schedules import Action, Kind, schedule
from intaglio.planning.simulation import Run, Slot, simulate
from intaglio.planning.stages import own_stages
from intaglio.planning.timeline import draw_timeline
from intaglio.specs.parallel import PipelineSpec, Schedule

SCHEDULES = get_args(Schedule)


class Asleep(PipelineStage):
    """A stage of one number that takes its time, and writes down when."""

    def __init__(self, number: int, stages: int, seconds: float, slots: list[tuple[Action, float, float]]) -> None:
        like = torch.empty(1, 1, device="meta", requires_grad=True)
        super().__init__(nn.Linear(1, 1), number, stages, torch.device("cpu"), input_args=like, output_args=like)
        self.seconds, self.slots = seconds, slots

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **more: Any) -> Any:
        return self._slept(
            "F", fwd_chunk_id, 1, lambda: PipelineStage.forward_one_chunk(self, fwd_chunk_id, *args, **more)
        )

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **more: Any) -> None:
        kind: Kind = "B" if more.get("full_backward", True) else "I"
        self._slept(
            kind,
            bwd_chunk_id,
            1 + (kind == "B"),
            lambda: PipelineStage.backward_one_chunk(self, bwd_chunk_id, *args, **more),
        )

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **more: Any) -> None:
        self._slept(
            "W", bwd_chunk_id, 1, lambda: PipelineStage.backward_weight_one_chunk(self, bwd_chunk_id, *args, **more)
        )

    def _slept(self, kind: Kind, number: int, times: int, compute: Any) -> Any:
        start = time.monotonic()
        found = compute()
        time.sleep(max(0.0, start + times * self.seconds - time.monotonic()))
        self.slots.append((Action(kind, self.stage_index, number), start, time.monotonic()))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--schedules", nargs="+", default=SCHEDULES, choices=SCHEDULES)
    parser.add_argument("--milliseconds", type=float, default=40.0)
    parser.add_argument("--timeline", type=Path, help="folder for the pictures")
    options = parser.parse_args()
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(found.getsockname()[1]), "OMP_NUM_THREADS": "1"}
    spawn(rank, (options,), nprocs=options.ranks)


def rank(number: int, options: argparse.Namespace) -> None:
    """One of the pipeline; the first tells."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=options.ranks)
    for name in options.schedules:
        for count in options.micro_batches:
            run = measured(PipelineSpec(ranks=options.ranks, schedule=name), count, options.milliseconds / 1000)
            if number == 0:
                tell(name, count, run, options)
    dist.destroy_process_group()


def measured(spec: PipelineSpec, count: int, seconds: float) -> Run:
    """A step, after one that is not counted; times are from the first action of any rank."""
    slots: list[tuple[Action, float, float]] = []
    own = own_stages(spec, dist.get_rank())
    stages = [Asleep(number, spec.stages, seconds / spec.chunks_a_rank, slots) for number in own]
    made = engine(spec, stages, count, loss_fn=_loss, scale_grads=False)
    for _ in range(2):
        slots.clear()
        dist.barrier()
        rows = torch.zeros(count, 1)
        made.step(*((rows,) if 0 in own else ()), target=rows, return_outputs=False)
    every: list[Any] = [None] * spec.ranks
    dist.all_gather_object(every, slots)
    begin = min(start for row in every for _, start, _ in row)
    rows_of = enumerate(every)
    return Run(
        schedule(spec, count),
        tuple(
            tuple(Slot(rank, action, start - begin, end - begin) for action, start, end in row) for rank, row in rows_of
        ),
    )


def _loss(out: Tensor, target: Tensor) -> Tensor:
    return out.sum()


def tell(name: str, count: int, run: Run, options: argparse.Namespace) -> None:
    """The share of time that is not slept away."""
    ideal = 3 * count * options.milliseconds / 1000
    found = {"measured": round(1 - ideal / run.makespan, 3), "simulated": round(simulate(run.table).bubble, 3)}
    report("pipeline bubble", schedule=name, ranks=options.ranks, micro_batches=count, **found)
    if options.timeline:
        options.timeline.mkdir(parents=True, exist_ok=True)
        draw_timeline(options.timeline / f"{name}-{count}.svg", run, f"{name}, measured", "seconds")


if __name__ == "__main__":
    main()
