"""`intaglio plan --trace`: the engine's number beside the arithmetic's. Loads torch."""

import os
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from intaglio.lineage.units import short_bytes
from intaglio.planning.job_plan import JobPlan, plan_job
from intaglio.planning.rank_plan import RankPlan
from intaglio.training.memory.trace import Trace, trace_job

__all__ = ["Beside", "show_trace", "traced"]


@dataclass(frozen=True)
class Beside:
    """A plan and a trace of the same.

    Attributes:
        planned: the rank that needs most, on the trace's own terms.
        traced: the same rank.
    """

    planned: RankPlan
    traced: Trace

    @property
    def error(self) -> float:
        """How much too high the arithmetic is, of the engine's peak."""
        return self.planned.peak_bytes / self.traced.peak_bytes - 1

    def rows(self) -> list[tuple[str, int, int]]:
        """What stays and what comes and goes, of the peak: a name, planned and traced bytes."""
        plan, states = self.planned.states, self.traced.states
        stays = [
            ("weights", plan.weights + plan.adapters, states["weights"]),
            ("master weights", plan.master_weights, states["masters"]),
            ("gradients", plan.gradients, states["gradients"]),
            ("optimizer states", plan.optimizer_states, states["optimizer_states"]),
        ]
        rest = (
            "while a step goes on",
            self.planned.peak_bytes - sum(row[1] for row in stays),
            self.traced.peak_bytes - sum(row[2] for row in stays),
        )
        return [row for row in (*stays, rest) if row[1] or row[2]]

    def moments(self) -> list[tuple[str, int, int]]:
        """Each moment of a step: planned and traced bytes. The engine's loss begins with the forward."""
        planned: dict[str, int] = {}
        for moment in self.planned.moments:
            name = "loss" if moment.name == "forward" else moment.name
            planned[name] = max(planned.get(name, 0), moment.num_bytes)
        return [(name, planned.get(name, 0), one.num_bytes) for name, one in self.traced.moments.items()]

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        rows = {name: {"arithmetic": planned, "engine": found} for name, planned, found in self.rows()}
        moments = {name: {"arithmetic": planned, "engine": found} for name, planned, found in self.moments()}
        return {
            "engine": self.traced.plain(),
            "arithmetic": self.planned.plain(),
            "error": self.error,
            "components": rows,
            "moments": moments,
        }


def traced(plan: JobPlan) -> Beside:
    """Traces a plan's job on the rank that needs most.

    Both are of a CPU without our own operators, whatever device was planned for: that is what the trace runs on.

    Raises:
        UserError: see `trace_job`.
    """
    os.environ["INTAGLIO_NATIVE"] = "off"  # nothing has asked for them yet
    spec, job, layout = plan.spec, plan.job, plan.layout
    planned = plan_job(spec, job, layout, cpu=True, native=False).worst
    return Beside(planned, trace_job(spec, job, layout, planned.rank.pp))


def show_trace(found: Beside) -> None:
    """Prints both."""
    console, trace = Console(highlight=False), found.traced
    how = f"all {trace.layers} layers"
    if trace.extrapolated:
        how = f"{trace.depths[0]} and {trace.depths[1]} of {trace.layers} layers, the rest follows"
    console.print(f"Traced on PyTorch's engine (fake tensors, a CPU): {how}")
    table = _table("component")
    for name, planned, seen in found.rows():
        _row(table, name, planned, seen)
    _row(table, "peak", found.planned.peak_bytes, trace.peak_bytes, "bold")
    console.print(Padding(table, (1, 0, 1, 2)))
    times = _table("moment of a step")
    for name, planned, seen in found.moments():
        _row(times, name, planned, seen)
    console.print(Padding(times, (0, 0, 1, 2)))


def _table(first: str) -> Table:
    table = Table(first, "arithmetic", "engine", "error", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _row(table: Table, name: str, planned: int, seen: int, style: str = "") -> None:
    error = f"{planned / seen - 1:+.2%}" if seen and planned else ""
    cells = (name, short_bytes(planned) if planned else "", short_bytes(seen), error)
    table.add_row(*(Text(cell, style=style) for cell in cells))
