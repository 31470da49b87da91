"""How long the ranks of a pipeline wait: PyTorch's engine with stages that sleep, beside the simulation of its tables.

See `intaglio.atlas.asleep`. The bubble is the share of the time from the first action to the last of any rank in which
a rank does not sleep. `--timeline FOLDER` draws what was measured.
"""

import argparse
from pathlib import Path
from typing import get_args

from _timing import report

from intaglio.atlas.among import on_ranks
from intaglio.atlas.asleep import slept
from intaglio.planning.simulation import Run, simulate
from intaglio.planning.timeline import draw_timeline
from intaglio.specs.parallel import PipelineSpec, Schedule

SCHEDULES = get_args(Schedule)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--schedules", nargs="+", default=SCHEDULES, choices=SCHEDULES)
    parser.add_argument("--milliseconds", type=float, default=40.0)
    parser.add_argument("--timeline", type=Path, help="folder for the pictures")
    options = parser.parse_args()
    wanted = [(name, count) for name in options.schedules for count in options.micro_batches]
    first, *_ = on_ranks(options.ranks, measured, options.ranks, wanted, options.milliseconds / 1000)
    for (name, count), run in zip(wanted, first, strict=True):
        tell(name, count, run, options)


def measured(ranks: int, wanted: list[tuple[Schedule, int]], seconds: float) -> list[Run]:
    """On a rank: a step of each schedule with its micro-batches."""
    return [slept(PipelineSpec(ranks=ranks, schedule=name), count, seconds) for name, count in wanted]


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
