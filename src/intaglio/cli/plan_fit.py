"""`intaglio plan --fit`, `--timeline` and the time of a step: what `cli.plan` asks for beyond memory. No torch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from intaglio.cli.plan_request import Request, training
from intaglio.errors import UserError
from intaglio.files import whole_file
from intaglio.lineage.units import short_bytes
from intaglio.planning.devices import Device, overhead
from intaglio.planning.fit import Fit, Found, Space, find_fit, usual_space
from intaglio.planning.fit_words import PARTS, describe, explain, recipe_lines, settings
from intaglio.planning.job_plan import plan_job
from intaglio.planning.jobs import JobSpec
from intaglio.planning.least_bytes import least_bytes
from intaglio.planning.rank_plan import plan_rank
from intaglio.planning.report import Report
from intaglio.planning.speeds import Execution, assumptions
from intaglio.planning.step_time import StepTime, step_time
from intaglio.planning.timeline import draw_timeline
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec

__all__ = ["draw_pipeline", "draw_run", "fit_layout", "show_fit", "show_time", "time_of"]


def time_of(report: Report) -> StepTime:
    """The time of a step of what was planned."""
    plan, device = report.plan, report.device
    return step_time(plan.spec, plan.job, plan.layout, device, Execution(assumptions(device)))


def show_time(report: Report) -> None:
    """Prints it."""
    _print_time(Console(highlight=False), time_of(report))


def draw_pipeline(report: Report, path: Path) -> None:
    """The pipeline's timeline as a picture (SVG), with each stage's own times.

    Raises:
        UserError: there is no pipeline, or the file cannot be written.
    """
    draw_run(time_of(report), report.plan.layout, path)


def draw_run(time: StepTime, layout: ParallelSpec, path: Path) -> None:
    """The same of a step that was timed.

    Raises:
        UserError: see `draw_pipeline`.
    """
    if time.run is None:
        raise UserError("one stage has no timeline", where="--timeline", mend="say --pp 2 or more")
    count = time.run.table.micro_batches
    title = f"{layout.pp.schedule}: {layout.pp.ranks} ranks, {count} micro-batches, bubble {time.bubble:.1%}"
    draw_timeline(path, time.run, title, "seconds")


def fit_layout(request: Request, sequences: int | None = None) -> tuple[Fit, Device]:
    """The fastest layout for what was asked; options that were given are kept, the rest is searched.

    Args:
        request: a job and devices.
        sequences: of an optimizer step, of all devices.

    Raises:
        UserError: no `--gpus`, an option that the search has no use for, nothing possible, nothing fits, or see
            `plan_request.training`.
    """
    if request.gpus is None:
        raise UserError("how many devices?", where="--fit", mend="say --gpus 8")
    if request.layout.get("offload"):
        raise UserError(
            "the search knows no offloading", where="--offload", mend="plan a layout with it, without --fit"
        )
    if sequences is not None and "accumulation" in request.fields:
        raise UserError("follows from --sequences", where="--accumulation", mend="give one of the two")
    plan = training(replace(request, gpus=None, layout={}, pipeline={})).report.plan
    spec, job, device = plan.spec, plan.job, request.found_device()
    space = _kept(usual_space(spec, job, request.gpus, device, sequences), request)
    memory = _Memory(spec, device)
    found = find_fit(
        spec, job, device, space, memory.planned, device.memory, Execution(assumptions(device)), memory.least
    )
    return found, device


class _Memory:
    """What a rank needs with what the runtime takes beside, at most: what fits does so surely."""

    def __init__(self, spec: DecoderSpec, device: Device) -> None:
        self.spec, self.device = spec, device

    def planned(self, job: JobSpec, layout: ParallelSpec) -> int:
        """Of all kinds of ranks, or of the first if that is too much already."""
        first = self._beside(plan_rank(self.spec, job, layout, cpu=self.device.cpu).peak_bytes, layout)
        if first > self.device.memory:
            return first
        return self._beside(plan_job(self.spec, job, layout, cpu=self.device.cpu).peak_bytes, layout)

    def least(self, job: JobSpec, layout: ParallelSpec) -> int:
        return self._beside(least_bytes(self.spec, job, layout), layout)

    def _beside(self, tensors: int, layout: ParallelSpec) -> int:
        return tensors + overhead(self.device, tensors, layout.world).most


def _kept(space: Space, request: Request) -> Space:
    """The space with what the options say in place of a choice."""
    given: dict[str, Any] = {
        name: (request.layout[name],) for name in ("tp", "cp", "ep", "zero", "hsdp") if name in request.layout
    }
    if "ranks" in request.pipeline:
        given["pp"] = (request.pipeline["ranks"],)
    if "schedule" in request.pipeline:
        given["schedules"] = ((request.pipeline["schedule"], request.pipeline.get("chunks")),)
    given |= {name: (request.fields[name],) for name in ("micro_batch", "checkpointing") if name in request.fields}
    return replace(space, **given)


def show_fit(found: Fit, device: Device, json: bool, out: Path | None = None) -> dict[str, Any] | None:
    """Prints what was found, or hands it over as JSON; writes the recipe's lines to a file.

    Args:
        found: by the search.
        device: of each rank.
        json: hand over instead of printing.
        out: the YAML file.
    """
    if out is not None:
        with whole_file(out) as beside:
            beside.write_text(recipe_lines(found.winner), encoding="utf-8")
    if json:
        return _plain(found, device)
    console = Console(highlight=False)
    console.print(f"Fastest that fits: {describe(found.winner)}")
    needs = f"{short_bytes(found.winner.num_bytes)} of {short_bytes(device.memory)}"
    console.print(f"{needs} on each of {found.winner.layout.world} x {device.title}, runtime included")
    _print_time(console, found.winner.time)
    for line in explain(found, device.memory):
        console.print(line)
    console.print(Padding(recipe_lines(found.winner).rstrip(), (1, 0, 0, 2)))
    return None


def _plain(found: Fit, device: Device) -> dict[str, Any]:
    def one(what: Found | None) -> dict[str, Any] | None:
        if what is None:
            return None
        return {**settings(what), "bytes": what.num_bytes, "time": what.time.plain()}

    return {
        "winner": one(found.winner),
        "second": one(found.second),
        "faster_but_too_large": one(found.faster),
        "explanation": list(explain(found, device.memory)),
        "possible": found.possible,
        "planned": found.planned,
        "device": {"name": device.name, "title": device.title, "memory_bytes": device.memory},
    }


def _print_time(console: Console, time: StepTime) -> None:
    money = f", {time.dollars_per_billion:,.0f} dollars for a billion" if time.price else ""
    speed = f"{time.tokens_per_second:,.0f} tokens a second and device, {time.tokens_per_day / 1e9:,.2f} billion a day"
    console.print(
        f"A step of {time.tokens:,} tokens takes {_seconds(time.seconds)}: {speed}{money}; MFU {time.mfu:.1%}"
    )
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right"):
        table.add_column(justify=justify)
    for name, seconds in sorted(time.parts.items(), key=lambda part: -part[1]):
        table.add_row(PARTS[name], _seconds(seconds), f"{seconds / time.seconds:.1%}")
    console.print(Padding(table, (1, 0, 1, 2)))


def _seconds(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds >= 1 else f"{1000 * seconds:,.1f} ms"
