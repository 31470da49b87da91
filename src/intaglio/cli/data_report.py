"""How `intaglio data check` shows what it found: within 80 columns, line numbers and all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from intaglio.data.check import PROBLEMS, Report

__all__ = ["as_data", "print_report"]

_SHOWN = 4  # findings of a kind
_BAR = 36  # columns
_BINS = 8


def as_data(report: Report, written: int | None) -> dict[str, Any]:
    """The report for JSON; `written` is the number of rows of the clean copy."""
    return {
        "rows": report.rows,
        "formats": dict(report.formats),
        "rows_by_problem": report.rows_by_problem,
        "findings": [{"problem": f.problem, "where": f.where, "what": f.what} for f in report.findings],
        "notes": report.notes,
        f"{report.languages_by}s": dict(report.languages.most_common()),
        "lengths": {"unit": report.unit, "context": report.context, **_quantiles(report.lengths)},
        "supervised_share": _rounded(report.supervised_share),
        "pairs": {"count": report.pairs, "longer_wins": _rounded(report.longer_share)},
        "judged": dict(report.judged),
        "clean_rows": written,
    }


def print_report(report: Report, name: str, out: Path | None, written: int | None) -> None:
    """Prints the report; `written` rows went to `out`."""
    console = Console(highlight=False, markup=False)  # rows are the user's
    console.print(Text(name, style="bold"))
    console.print(f"  {_counted(report)}")
    for note in report.notes:
        console.print(Padding(Text(f"! {note}", style="yellow"), (0, 0, 0, 2), expand=False))
    console.print()
    console.print(_problems(report))
    if report.lengths:
        console.print(_section(f"Length in {report.unit}", _lengths(report)))
    if report.languages:
        counts = [(language, count) for language, count in report.languages.most_common(_BINS)]
        console.print(_section(report.languages_by.capitalize(), _bars(counts)))
    if report.supervised_share is not None:
        console.print(_section("Supervised", Text(f"  {report.supervised_share:.1%} of the tokens are learned")))
    if report.longer_share is not None:
        words = f"  {report.pairs:,}; in {report.longer_share:.1%} of them the better answer is the longer one"
        console.print(_section("Pairs", Text(words)))
    if report.judged:
        words = f"  {report.judged['wanted']:,} answers are wanted, {report.judged['unwanted']:,} are not"
        console.print(_section("Judged", Text(words)))
    if out is not None:
        console.print(Text(f"\n{written:,} of {_rows(report.rows)} in {out}", style="bold"))


def _rounded(share: float | None) -> float | None:
    return None if share is None else round(share, 4)


def _counted(report: Report) -> str:
    formats = ", ".join(f"{count:,} {format}" for format, count in report.formats.most_common())
    return f"{_rows(report.rows)}: {formats or 'no format that we know'}"


def _rows(count: int) -> str:
    return f"{count:,} {'row' if count == 1 else 'rows'}"


def _problems(report: Report) -> Group | Text:
    if not report.findings:
        return Text("Nothing wrong was found.", style="green")
    parts: list[Text | Padding] = []
    for problem, count in report.rows_by_problem.items():
        parts.append(Text(f"{_rows(count)}: {PROBLEMS[problem]}", style="bold red"))
        found = [finding for finding in report.findings if finding.problem == problem]
        rows = [Text.assemble((f.where, "cyan"), f"  {_printable(f.what)}") for f in found[:_SHOWN]]
        if len(found) > _SHOWN:
            rows.append(Text(f"and {len(found) - _SHOWN:,} more (--json has all)", style="dim"))
        parts += [Padding(row, (0, 0, 0, 2), expand=False) for row in rows]
    return Group(*parts)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def _section(title: str, body: Any) -> Group:
    return Group(Text(f"\n{title}", style="bold"), body)


def _lengths(report: Report) -> Group:
    numbers = _quantiles(report.lengths)
    words = f"  {numbers['least']:,} to {numbers['most']:,}, half of them below {numbers['median']:,}"
    if report.context is not None:
        words += f"; {report.context:,} fit"
    return Group(_bars(_histogram(report.lengths)), Text(words, style="dim"))


def _quantiles(lengths: Sequence[int]) -> dict[str, int]:
    ordered = sorted(lengths)
    if not ordered:
        return {}
    last = len(ordered) - 1
    shares = {"least": 0.0, "median": 0.5, "p95": 0.95, "most": 1.0}
    return {name: ordered[round(last * share)] for name, share in shares.items()} | {"total": sum(ordered)}


def _histogram(lengths: Sequence[int]) -> list[tuple[str, int]]:
    """Bins of powers of two, the short and the long ends put together where there are many."""
    bins = [length.bit_length() for length in lengths]
    first = max(min(bins), max(bins) - _BINS + 1)
    counts = [sum(max(b, first) == place for b in bins) for place in range(first, max(bins) + 1)]
    return [(f"< {1 << place:,}", count) for place, count in enumerate(counts, first)]


def _bars(counts: Sequence[tuple[str, int]]) -> Padding:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, width=_BAR)
    table.add_column(justify="right", no_wrap=True)
    most = max(count for _, count in counts)
    for name, count in counts:
        table.add_row(name, Text(_bar(count / most), style="cyan"), f"{count:,}")
    return Padding(table, (0, 0, 0, 2), expand=False)


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    rest = " ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else ""
    return "█" * (eighths // 8) + (rest or ("▏" if share > 0 and eighths == 0 else ""))
