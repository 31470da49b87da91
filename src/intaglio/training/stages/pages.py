"""The report of stages for people: lines for a terminal, a page, a picture."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from intaglio.errors import UserError
from intaglio.evaluation.side_by_side import as_lines, as_markdown
from intaglio.files import whole_file
from intaglio.plots import Spot, draw_spots

__all__ = ["draw_report", "report_lines", "write_page"]

Report = Mapping[str, Any]


def report_lines(report: Report, width: int = 100) -> list[str]:
    """For a terminal: tables with a row for each stage, then some answers."""
    tables = [line for table in _tables(report) for line in [*_aligned(table), ""]]
    return [_title(report), "", *tables, *as_lines(*_samples(report), width)]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in rows]


def write_page(report: Report, path: Path) -> None:
    """The same as Markdown."""
    minutes = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in report["seconds"].items())
    parts = [
        "# Stages compared",
        _title(report),
        *map(_markdown, _tables(report)),
        f"![what judges the answers, against the divergence](report.png)\n\nMinutes: {minutes}.",
        as_markdown(*_samples(report)),
    ]
    with whole_file(path) as beside:
        beside.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *rest = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rest))


def draw_report(report: Report, path: Path, say: Callable[[str], None]) -> None:
    """Each judge's mean against the divergence, a spot for each stage; a report is not lost for want of a picture."""
    panels: dict[str, dict[str, Spot]] = {}
    for name, stage in report["stages"].items():
        for judge, found in stage["scores"].items() if stage["divergence"] else ():
            panels.setdefault(judge, {})[name] = (stage["divergence"][0], tuple(found["mean"]))
    if not panels:
        return
    try:
        draw_spots(path, panels, f"KL from {report['baseline']}, nats an answer")
    except UserError as error:
        say(str(error))


def _title(report: Report) -> str:
    how = f"Answers at temperature {report['temperature']:g}" if report["temperature"] else "Greedy answers"
    return (
        f"{how} to {report['prompts']} held-out prompts, each stage beside {report['baseline']}; "
        "means with 95 % intervals over prompts."
    )


def _tables(report: Report) -> list[list[list[str]]]:
    """How far each stage is from the baseline, then what each judge says of it."""
    base, stages = report["baseline"], report["stages"]
    head = ["stage", f"KL from {base}", "tokens", "ended by itself"]
    tables = [[head, *(_distance(name, stage) for name, stage in stages.items())]]
    for judge in stages[base]["scores"]:
        head = [judge, "mean", f"gain over {base}", f"wins against {base}"]
        judged = {name: stage["scores"][judge] for name, stage in stages.items() if judge in stage["scores"]}
        tables.append([head, *(_judgement(name, found, name == base) for name, found in judged.items())])
    return tables


def _distance(name: str, stage: Mapping[str, Any]) -> list[str]:
    return [name, _shown(stage["divergence"], 2), _shown(stage["length"], 1), f"{stage['ended'][0]:.0%}"]


def _judgement(name: str, found: Mapping[str, Any], is_base: bool) -> list[str]:
    beside = ["", ""] if is_base else [_shown(found["gain"], 2, "+"), _percent(found["win_rate"])]
    return [name, _shown(found["mean"], 2), *beside]


def _shown(interval: Sequence[float] | None, digits: int, sign: str = "") -> str:
    if interval is None:
        return ""
    mean, low, high = (f"{value:{sign}.{digits}f}" for value in interval)
    return f"{mean} [{low}, {high}]"


def _percent(interval: Sequence[float]) -> str:
    mean, low, high = (f"{value:.0%}" for value in interval)
    return f"{mean} [{low}, {high}]"


def _samples(report: Report) -> tuple[list[str], dict[str, list[str]]]:
    samples = report["samples"]
    answers = {name: [sample["answers"][name]["text"] for sample in samples] for name in report["stages"]}
    return [sample["prompt"] for sample in samples], answers
