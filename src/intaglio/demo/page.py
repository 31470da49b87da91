"""The report of a demo: one page that needs nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from intaglio.demo.board import Row
from intaglio.demo.stage import Found, Stage
from intaglio.pages import whole_page

__all__ = ["page", "value_of"]

_STYLE: Final = """
body { max-width: 62rem } table { width: 100% } th, td { text-align: left } .number { text-align: right }
.beaten { color: light-dark(#2b7a4b, #7fd0a0); font-weight: 600 }
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
    return whole_page("The whole life of a model", "\n".join([*_table(table, about), *_stages(stages, found)]), _STYLE)


def value_of(row: Row, name: str = "value") -> str:
    """A number of the final table, as it is written."""
    return "" if row[name] is None else format(row[name], row["form"])


def _table(table: Sequence[Row], about: str) -> Iterator[str]:
    yield "<h1>The whole life of a model</h1>"
    yield f'<p class="small">{escape(about)}</p><div class="wide"><table>'
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
        ("small", row["of"]),
        ("number", f"{row['seconds']:.0f}"),
    )
    return "<tr>" + "".join(f'<td class="{kind}">{escape(str(text))}</td>' for kind, text in cells) + "</tr>"


def _stages(stages: Sequence[Stage], found: Mapping[str, Any]) -> Iterator[str]:
    for stage in stages:
        lines = stage.lines(found[stage.name])
        if lines:
            yield f"<h2>{escape(stage.about)}</h2><pre>{escape(chr(10).join(lines))}</pre>"
