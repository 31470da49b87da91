"""The report of a demo: one page that needs nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from intaglio.demo.board import Row
from intaglio.demo.stage import Found, Stage

__all__ = ["page", "value_of"]

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c1b19; --paper: #fbfaf7; --faint: #77736b; --line: #ddd8ce; --good: #2b7a4b }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ece8e0; --paper: #1a1916; --faint: #a09a8e; --line: #3a372f; --good: #7fd0a0 }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem }
.wide { overflow-x: auto } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line) }
td.number { text-align: right; font-variant-numeric: tabular-nums } th.number { text-align: right }
.faint { color: var(--faint) } .beaten { color: var(--good); font-weight: 600 }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0; font: 14px/1.45 ui-monospace, monospace }
"""


def page(stages: Sequence[Stage], found: Mapping[str, Found], table: Sequence[Row], about: str) -> str:
    """The whole page.

    Args:
        stages: in order.
        found: what came of each.
        table: the final one.
        about: a line on the machine and the day.
    """
    head = f"<title>The whole life of a model</title><style>{_STYLE}</style>"
    view = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    body = "\n".join([*_table(table, about), *_stages(stages, found)])
    return f'<!doctype html>\n<html lang="en"><head>{view}{head}</head><body>\n{body}\n</body></html>\n'


def value_of(row: Row, name: str = "value") -> str:
    """A number of the final table, as it is written."""
    return "" if row[name] is None else format(row[name], row["form"])


def _table(table: Sequence[Row], about: str) -> Iterator[str]:
    yield "<h1>The whole life of a model</h1>"
    yield f'<p class="faint">{escape(about)}</p><div class="wide"><table>'
    heads = ("stage", "what", "number", "to beat", "whose", "seconds")
    numbers = {"number", "to beat", "seconds"}
    yield "<tr>" + "".join(f'<th class="{"number" if h in numbers else ""}">{h}</th>' for h in heads) + "</tr>"
    for row in table:
        yield _line(row)
    yield "</table></div>"


def _line(row: Row) -> str:
    marked = "number beaten" if row["beaten"] else "number"
    cells = (
        ("", row["name"]),
        ("", row["what"]),
        (marked, value_of(row)),
        ("number", value_of(row, "beat")),
        ("faint", row["of"]),
        ("number", f"{row['seconds']:.0f}"),
    )
    return "<tr>" + "".join(f'<td class="{kind}">{escape(str(text))}</td>' for kind, text in cells) + "</tr>"


def _stages(stages: Sequence[Stage], found: Mapping[str, Any]) -> Iterator[str]:
    for stage in stages:
        lines = stage.lines(found[stage.name])
        if lines:
            yield f"<h2>{escape(stage.about)}</h2><pre>{escape(chr(10).join(lines))}</pre>"
