"""The figures of a load test as tables on a terminal."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from intaglio.evaluation.load.curves import short

__all__ = ["level_table", "show"]

Run = Mapping[str, Any]

_TIMES = {"TTFT": "ttft_s", "TPOT": "tpot_s", "latency": "latency_s"}
_WIDE = 104  # letters a line from which on there is room for more columns


def show(runs: Sequence[Run], page: str | None) -> None:
    """A table a server, the servers beside the first, what failed, and what the figures do not say."""
    console = Console()
    names = list(dict.fromkeys(run["name"] for run in runs))
    for name in names:
        console.print(level_table(name, [run for run in runs if run["name"] == name], console.width >= _WIDE))
    if len(names) > 1:
        console.print(_beside(runs, names))
    console.print("Times in ms: the median/the slowest hundredth (p99). Tokens of answers.", style="dim")
    for line in _remarks(runs):
        console.print(line, markup=False, highlight=False)
    if page:
        console.print(f"page: {page}", markup=False, highlight=False, soft_wrap=True)


def level_table(title: str, runs: Sequence[Run], wide: bool = False) -> Table:
    """One server: a row a level."""
    rows = [_cells(run, wide) for run in runs]
    return _table(title, list(rows[0]) if rows else [], [list(row.values()) for row in rows])


def _cells(run: Run, wide: bool) -> dict[str, str]:
    """What stands in each column for a level."""
    read = run["input_tokens_each"]["mean"]
    more = {"tokens in": "-" if read is None else f"{read:.0f}", "ITL": _milliseconds(run["itl_s"])} if wide else {}
    kept = {"kept": f"{run['goodput']['attainment']:.0%}"} if run["goodput"] else {}
    return {
        "load": _words(run),
        "tokens/s": f"{run['output_tokens_per_second'] or 0:.1f}",
        "made/wanted": _of(run["output_tokens"], run["wanted_output_tokens"]),
        "failed": f"{run['failed']}/{run['requests']}",
        **{name: _milliseconds(run[key]) for name, key in _TIMES.items()},
        **more,
        **kept,
    }


def _words(run: Run) -> str:
    """How much load it was."""
    highest = " *" if run.get("highest") else ""
    return (f"{run['concurrency']:g} at once" if "concurrency" in run else f"{run['rate']:.3g}/s") + highest


def _milliseconds(spread: Mapping[str, Any]) -> str:
    middle, slow = spread["p50"], spread["p99"]
    return "-" if middle is None else f"{short(1000 * middle)}/{short(1000 * slow)}"


def _of(part: int, whole: int) -> str:
    return str(part) if part == whole else f"{part}/{whole}"


def _beside(runs: Sequence[Run], names: Sequence[str]) -> Table:
    """What the others take of what the first takes, where both were measured at a load."""
    first = {_words(run): run for run in runs if run["name"] == names[0]}
    rows = []
    for run in runs:
        base = first.get(_words(run))
        if run["name"] != names[0] and base is not None:
            speeds = (run["output_tokens_per_second"], base["output_tokens_per_second"])
            times = [(run[key]["p50"], base[key]["p50"]) for key in _TIMES.values()]
            rows.append([_words(run), run["name"], *(_ratio(*pair) for pair in (speeds, *times))])
    return _table(f"beside {names[0]}", ["load", "server", "tokens/s", *_TIMES], rows)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, box=None, title_justify="left", pad_edge=False, padding=(0, 1))
    for name in head:
        table.add_column(name, justify="left" if name in ("load", "server") else "right", no_wrap=name != "server")
    for row in rows:
        table.add_row(*row)
    return table


def _ratio(value: float | None, base: float | None) -> str:
    return "-" if value is None or not base else f"{value / base:.2f}×"


def _remarks(runs: Sequence[Run]) -> Iterator[str]:
    """Failures by kind, and turns apart; then what was remarked, once each."""
    for run in runs:
        for kind, count in run["errors"].items():
            said = run["error_details"].get(kind, "")
            yield f"{_words(run)} on {run['name']}: {count} × {kind}{': ' + said if said else ''}"
        if "later_turn_ttft_s" in run:
            first, later = (_milliseconds(run[f"{which}_turn_ttft_s"]) for which in ("first", "later"))
            yield f"{_words(run)} on {run['name']}: TTFT {first} in first turns, {later} in later ones"
    told: dict[str, list[str]] = {}
    for run in runs:
        for text in run["warnings"]:
            told.setdefault(text, []).append(f"{_words(run)} on {run['name']}")
    for text, places in told.items():
        where = "" if len(places) == len(runs) else f", {', '.join(places)}"
        yield f"note{where}: {text}"
    if any(run.get("highest") for run in runs):
        yield "* the most load at which the targets were kept"
