"""The results of an evaluation on a terminal: tables of scores, curves and categories, failures, what was left out."""

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from intaglio.evaluation.results import Outcome, Results, Summary, TaskResult
from intaglio.evaluation.side_by_side import one_line

__all__ = ["failures_of", "show", "warnings_of"]

SHOWN = 3
"""Rows that were left out told one by one."""


def show(results: Results, failures: int, path: str | None) -> None:
    """Prints everything.

    Args:
        results: of a run.
        failures: items that went wrong shown for each task.
        path: where the results lie.
    """
    console = Console()
    shots = results.settings.get("shots", [0])
    if len(shots) > 1:
        for metric in _metrics(results):
            console.print(_curve(results, metric, shots))
    else:
        console.print(_scores(results))
    for name, result in results.tasks.items():
        if len(result.categories) > 1:
            console.print(_categories(name, result))
        for one in failures_of(result, failures):
            _say_failure(console, one)
    console.print("95 %: where 95 of 100 such samples would have the mean (bootstrap).", style="dim")
    if path:
        console.print(f"results: {path}", markup=False, highlight=False, soft_wrap=True)


def failures_of(result: TaskResult, most: int) -> list[Outcome]:
    """The first items whose first metric is below 1."""
    wrong = [one for one in result.outcomes if next(iter(one.scores.values()), 1.0) < 1.0]
    return wrong[:most]


def warnings_of(results: Results) -> Iterator[str]:
    """What is in no score, and why."""
    for name, result in results.tasks.items():
        rows = [(row.where, row.why) for row in result.bad_rows]
        yield from _left_out(
            name, rows, "bad rows were left out, and count nowhere", "a bad row was left out, and counts nowhere"
        )
        missing = [(one.where or one.id, one.reason) for one in result.unanswered]
        yield from _left_out(
            name, missing, "items were not answered, and count nowhere", "an item was not answered, and counts nowhere"
        )


def _left_out(name: str, rows: Sequence[tuple[str, str]], several: str, one: str) -> Iterator[str]:
    if not rows:
        return
    yield f"{name}: {len(rows)} {several}" if len(rows) > 1 else f"{name}: {one}"
    yield from (f"  {where}: {why}" for where, why in rows[:SHOWN])
    if len(rows) > SHOWN:
        yield f"  and {len(rows) - SHOWN} more"


def _metrics(results: Results) -> list[str]:
    return list(dict.fromkeys(metric for result in results.tasks.values() for metric in result.metrics))


def _scores(results: Results) -> Table:
    table = Table("task", "metric", "mean", "95 %", "items", title=str(results.model.get("name", "")))
    for name, result in results.tasks.items():
        for place, (metric, one) in enumerate(result.metrics.items()):
            table.add_row("" if place else name, metric, *_row(one))
        if not result.metrics:
            table.add_row(name, "-", "-", "-", "0")
    return table


def _curve(results: Results, metric: str, shots: Sequence[int]) -> Table:
    """A row a task, a column a number of examples."""
    table = Table("task", *(f"{number} shot{'s' * (number != 1)}" for number in shots), title=metric)
    names = dict.fromkeys(name.rpartition("@")[0] for name in results.tasks)
    for name in names:
        found = [results.tasks[f"{name}@{number}"].metrics.get(metric) for number in shots]
        table.add_row(name, *map(_cell, found))
    return table


def _categories(name: str, result: TaskResult) -> Table:
    """By the first metric."""
    metric = next(iter(result.metrics))
    table = Table("category", metric, "95 %", "items", title=name)
    for category, found in result.categories.items():
        if metric in found:
            table.add_row(category, *_row(found[metric]))
    return table


def _row(one: Summary) -> list[str]:
    return [f"{one.mean:.3f}", f"{one.low:.3f} to {one.high:.3f}", str(one.n)]


def _cell(one: Summary | None) -> str:
    return "-" if one is None else f"{one.mean:.2f} ({one.low:.2f} to {one.high:.2f})"


def _say_failure(console: Console, one: Outcome) -> None:
    how: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
    prompt = one.prompt if isinstance(one.prompt, str) else one.prompt[-1]["content"]
    console.print(f"\n{one.task} {one.id}  ({one.where})", **how)
    console.print(f"  asked  {one_line(prompt, 400)}", **how)
    console.print(f"  right  {one_line(' | '.join(one.right), 200)}", **how)
    console.print(f"  said   {one_line(one.prediction or one.text, 200)}", **how)
