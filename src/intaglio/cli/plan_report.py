"""What `intaglio plan` prints for people, and the stacked bar. No torch."""

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from intaglio.cli.plan_fit import show_time, time_of
from intaglio.cli.plan_request import Served, Trained
from intaglio.lineage.units import short_bytes, short_count
from intaglio.planning.changes import Change
from intaglio.planning.report import Report

__all__ = ["draw", "plain", "show"]

GIB = 1 << 30
_VERDICTS = {
    "fits": ("It fits", "green"),
    "tight": ("It may fit: that depends on what the runtime takes", "yellow"),
    "too much": ("It does not fit", "red"),
}
_MOST = 8
"""Changes that are shown."""


def show(found: Trained | Served) -> None:
    """Prints a report."""
    console = Console(highlight=False)
    if isinstance(found, Served):
        _show_served(console, found)
        return
    report = found.report
    _head(console, found.title, report)
    console.print(Padding(_components(report), (1, 0, 1, 2)))
    _show_verdict(console, report)
    console.print(Padding(_moments(report), (1, 0, 1, 2)))
    if len(report.plan.ranks) > 1:
        console.print("Ranks of the pipeline")
        console.print(Padding(_ranks(report), (0, 0, 1, 2)))
    show_time(report)
    if report.changes and report.verdict != "fits":
        console.print("What to change first")
        console.print(Padding(_changes(report.changes), (0, 0, 1, 2)))
    if report.comparisons:
        console.print("As papers count it")
        console.print(Padding(_classic(report), (0, 0, 0, 2)))


def plain(found: Trained | Served) -> dict[str, Any]:
    """As JSON, with the time of a step."""
    if isinstance(found, Served):
        return found.plain()
    return {**found.plain(), "time": time_of(found.report).plain()}


def draw(found: Trained | Served, path: Path) -> None:
    """The moments of a step as stacked bars, and the device's memory as a line.

    Raises:
        UserError: matplotlib is not installed.
    """
    from intaglio.plots import draw_stacks

    if isinstance(found, Served):
        data, device = found.plan.plain(), found.device
        stacks = {"serving": data["components"]}
    else:
        device = found.report.device
        stacks = {moment.name: dict(moment.parts) for moment in found.report.plan.worst.moments}
    scaled = {name: {part: size / GIB for part, size in parts.items()} for name, parts in stacks.items()}
    draw_stacks(path, scaled, "GiB", (device.title, device.memory / GIB), found.title)


def _head(console: Console, title: str, report: Report) -> None:
    plan = report.plan
    job, layout = plan.job, plan.layout
    console.print(Text(title, style="bold"), Text(f"{short_count(plan.spec.num_parameters())} parameters"))
    trains = "QLoRA" if job.quantization else "LoRA" if job.adapter else "all weights"
    again = f", checkpointing {job.checkpointing}" if job.checkpointing else ""
    console.print(
        f"{job.job}, {trains}, {job.dtype}, {job.optimizer}; {job.micro_batch} x {job.sequence} tokens"
        f"{f' x {job.accumulation} micro-batches' if job.accumulation > 1 else ''}{again}"
    )
    sizes = {
        "dp": layout.dp,
        "zero": layout.zero,
        "hsdp": layout.hsdp,
        "tp": layout.tp,
        "cp": layout.cp,
        "ep": layout.ep,
    }
    kinds = [f"{name} {size}" for name, size in sizes.items() if size > (name != "zero")]
    kinds += [f"pp {layout.pp.ranks} ({layout.pp.schedule})"] if layout.pp.ranks > 1 else []
    kinds += ["offload"] if layout.offload else []
    money = report.device.price * layout.world
    price = f", {money:.2f} dollars an hour" if money else ""
    console.print(f"{layout.world} x {report.device.title}{price}{': ' if kinds else ''}{', '.join(kinds)}")


def _components(report: Report) -> Table:
    worst = report.plan.worst
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for name, size in worst.peak.parts.items():
        stays = "stays" if name in worst.resident else ""
        table.add_row(name, short_bytes(size), Text(stays, style="dim"))
    table.add_row(
        Text("peak", style="bold"), Text(short_bytes(worst.peak_bytes), style="bold"), f"at: {worst.peak.name}"
    )
    for name, (least, most) in report.overhead.parts.items():
        table.add_row(
            Text(f"{name}", style="dim"),
            Text(f"{short_bytes(least)} to {short_bytes(most)}", style="dim"),
            Text("beside", style="dim"),
        )
    if report.host_bytes:
        table.add_row("host's memory", short_bytes(report.host_bytes), "of one machine, all its ranks")
    return table


def _show_verdict(console: Console, report: Report) -> None:
    words, colour = _VERDICTS[report.verdict]
    least, most = (report.plan.peak_bytes + beside for beside in (report.overhead.least, report.overhead.most))
    console.print(
        Text(
            f"{words}: {short_bytes(least)} to {short_bytes(most)} of {short_bytes(report.device.memory)}", style=colour
        )
    )


def _moments(report: Report) -> Table:
    table = Table("moment of a step", "bytes", box=None)
    table.columns[1].justify = "right"
    for moment in report.plan.worst.moments:
        table.add_row(moment.name, short_bytes(moment.num_bytes))
    return table


def _ranks(report: Report) -> Table:
    table = Table("rank", "peak", "stays", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for rank in report.plan.ranks:
        table.add_row(str(rank.rank.pp), short_bytes(rank.peak_bytes), short_bytes(rank.resident_bytes))
    return table


def _changes(changes: list[Change]) -> Table:
    table = Table("change", "gains", "leaves", "", box=None)
    for column in table.columns[1:3]:
        column.justify = "right"
    for change in changes[:_MOST]:
        settings = " ".join(f"{key}={value}" for key, value in change.settings.items() if not isinstance(value, dict))
        other = "" if change.alike else "; another training"
        table.add_row(
            change.what, short_bytes(change.gain), short_bytes(change.peak_bytes), Text(settings + other, style="dim")
        )
    return table


def _classic(report: Report) -> Table:
    table = Table("formula", "", "theirs", "ours", "why", box=None)
    for place in (2, 3):
        table.columns[place].justify = "right"
    for one in report.comparisons:
        table.add_row(one.name, one.formula, short_bytes(int(one.theirs)), short_bytes(one.ours), one.why)
    return table


def _show_served(console: Console, found: Served) -> None:
    plan, data = found.plan, found.plan.plain()
    console.print(Text(found.title, style="bold"), Text(f"{short_count(found.spec.num_parameters())} parameters"))
    money = f", {found.device.price * found.tp:.2f} dollars an hour" if found.device.price else ""
    console.print(f"serving on {found.tp} x {found.device.title}{money}; {found.serving.context} tokens a sequence")
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    for name, size in data["components"].items():
        table.add_row(name, short_bytes(size))
    table.add_row(Text("peak", style="bold"), Text(short_bytes(plan.peak_bytes), style="bold"))
    rows: list[tuple[str, Any]] = [
        ("sequences planned with", f"{plan.concurrency:,}"),
        ("sequences that fit at most", f"{plan.largest_concurrency:,}"),
        ("tokens of one alone at most", f"{plan.largest_context:,}"),
        ("tokens a second of all, at most", f"{plan.tokens_per_second:,.0f}"),
        ("milliseconds a token of one, at least", f"{1000 * plan.seconds_per_token:.1f}"),
    ]
    for row in rows:
        table.add_row(*row)
    console.print(Padding(table, (1, 0, 0, 2)))
    if plan.largest_concurrency < plan.concurrency:
        console.print(Text("It does not fit: take more devices, fewer sequences or shorter ones", style="red"))
