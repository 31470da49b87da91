"""Curves, columns and fields of cells, drawn with the kit: axes, ticks and names that keep out of each other's way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from math import ceil, floor, log
from typing import Final

from intaglio.atlas.svg import Canvas, text_width, wrapped
from intaglio.evaluation.load.curves import short

__all__ = ["Axis", "Curve", "chart", "columns", "field", "head", "intervals", "legend", "short", "short_bytes_tick"]

Point = tuple[float, float]

_EDGE: Final = 12.0
_SMALL: Final = 11.0
_PLOT: Final = 190.0  # height of what is between the axes
_LEVELS: Final = 24  # of a field's shades


@dataclass(frozen=True)
class Curve:
    """One curve.

    Attributes:
        points: (x, y), x rising.
        look: its place among the colours, dashes and marks.
        marks: whether each point has a mark.
    """

    name: str
    points: Sequence[Point]
    look: int
    marks: bool = False


@dataclass(frozen=True)
class Axis:
    """One axis.

    Attributes:
        label: what is on it.
        base: of the logarithm, where it has one.
        low, high: its ends; None for those of the points.
        ticks: its marks; None for round ones.
        show: a mark in letters.
    """

    label: str
    base: float | None = None
    low: float | None = None
    high: float | None = None
    ticks: Sequence[float] | None = None
    show: Callable[[float], str] = short


class _Scale:
    """From values to places."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float, *, rounded: bool) -> None:
        self._axis, self._start, self._end = axis, start, end
        self.low = min(values) if axis.low is None else axis.low
        self.high = max(values) if axis.high is None else axis.high
        if self.high == self.low:
            self.high = self.low + 1
        self.ticks = list(axis.ticks or (_powers if axis.base else _round)(self.low, self.high, axis.base or 10))
        if rounded and axis.high is None and not axis.base:
            self.high = max(self.high, self.ticks[-1])
        self.ticks = [tick for tick in self.ticks if self.low * 0.999 - 1e-9 <= tick <= self.high * 1.001]

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        value = min(max(value, low), high)
        share = log(value / low) / log(high / low) if self._axis.base else (value - low) / (high - low)
        return self._start + share * (self._end - self._start)


def chart(title: str, curves: Sequence[Curve], x: Axis, y: Axis, *, width: float = 400) -> Canvas:
    """Curves over two axes, their names above them."""
    canvas = Canvas(width, 0)
    top = head(canvas, title) if title else _EDGE
    names = [(curve.name, curve.look) for curve in curves if curve.name]
    top = legend(canvas, names, top, curves[0].marks) if len(names) > 1 or not title else top
    canvas.text(_EDGE, top + 10, y.label, "faint", size=_SMALL)
    top, bottom = top + 24, top + 24 + _PLOT
    up = _Scale(y, [value for curve in curves for _, value in curve.points], bottom, top, rounded=True)
    left = _EDGE + 8 + max(text_width(y.show(tick), _SMALL) for tick in up.ticks)
    along = _Scale(x, [value for curve in curves for value, _ in curve.points], left, width - 24, rounded=False)
    _rows(canvas, y, up, left, width - 24)
    _steps(canvas, x, along, bottom)
    for curve in curves:
        places = [(along(a), up(b)) for a, b in curve.points]
        canvas.polyline(places, f"s{curve.look % 6}")
        for place in places if curve.marks else ():
            canvas.mark(curve.look, *place)
    canvas.text((left + width - 24) / 2, bottom + 36, x.label, "faint", size=_SMALL, anchor="middle")
    canvas.height = bottom + 44
    return canvas


def columns(
    title: str, stacks: dict[str, dict[str, float]], upright: str, show: Callable[[float], str], *, width: float = 400
) -> Canvas:
    """Columns side by side, each a stack of parts from below; a part has one shade in all of them."""
    canvas = Canvas(width, 0)
    names = list(dict.fromkeys(name for parts in stacks.values() for name in parts))
    top = head(canvas, title)
    top = _areas(canvas, names, top) if len(names) > 1 else top
    canvas.text(_EDGE, top + 10, upright, "faint", size=_SMALL)
    top, bottom = top + 38, top + 38 + _PLOT
    totals = {name: sum(parts.values()) for name, parts in stacks.items()}
    axis = Axis("", low=0, show=show)
    up = _Scale(axis, list(totals.values()), bottom, top, rounded=True)
    left = _EDGE + 8 + max(text_width(show(tick), _SMALL) for tick in up.ticks)
    _rows(canvas, axis, up, left, width - _EDGE)
    step = (width - _EDGE - left) / len(stacks)
    deepest = bottom
    for place, (name, parts) in enumerate(stacks.items()):
        middle, reached = left + step * (place + 0.5), 0.0
        for part, value in parts.items():
            y, foot = up(reached + value), up(reached)
            said = f"{name}, {part}: {show(value)}"
            canvas.rect(middle - step * 0.34, y, step * 0.68, foot - y, f"b{names.index(part) % 5}", said=said)
            reached += value
        canvas.text(middle, up(reached) - 5, show(reached), size=_SMALL, anchor="middle")
        deepest = max(deepest, _under(canvas, middle, bottom + 15, name, step - 4))
    canvas.height = deepest + 2
    return canvas


def intervals(title: str, rows: dict[str, tuple[float, float, float]], axis: Axis, *, width: float = 400) -> Canvas:
    """A row for each name: its value, and a line from the least to the most that it may be."""
    canvas = Canvas(width, 0)
    top = head(canvas, title) + 6
    left = _EDGE + 10 + max(text_width(name, _SMALL) for name in rows)
    along = _Scale(axis, [value for three in rows.values() for value in three], left, width - 60, rounded=False)
    bottom = top + 24 * len(rows)
    for tick in along.ticks:
        canvas.line(along(tick), top, along(tick), bottom, "grid")
    for place, (name, (value, low, high)) in enumerate(rows.items()):
        y = top + 24 * place + 12
        canvas.text(left - 10, y + 4, name, size=_SMALL, anchor="end")
        canvas.line(along(low), y, along(high), y, "arrow")
        canvas.mark(0, along(value), y, 4.5)
        canvas.text(along(high) + 9, y + 4, axis.show(value), size=_SMALL)
    _steps(canvas, axis, along, bottom)
    canvas.text((left + width - 60) / 2, bottom + 36, axis.label, "faint", size=_SMALL, anchor="middle")
    canvas.height = bottom + 44
    return canvas


def field(
    title: str,
    values: Sequence[Sequence[float]],
    *,
    across: str = "",
    down: str = "",
    low: float | None = None,
    high: float | None = None,
    rows: Sequence[str] = (),
    names: Sequence[str] = (),
    width: float = 400,
    cell: float | None = None,
    tall: float | None = None,
) -> Canvas:
    """Cells from faint (`low`) to strong (`high`), a row of `values` from left to right.

    Args:
        across, down: what the columns and the rows are.
        rows, names: of the rows and of the columns, where they have any.
        cell: its width; None for what fits.
        tall: its height; None for the width.
    """
    canvas = Canvas(width, 0)
    top = head(canvas, title) if title else _EDGE
    left = _EDGE + (18 if down else 0) + max((ceil(text_width(name, _SMALL)) + 6 for name in rows), default=0)
    cell = cell or max(13 if names else 1, floor((width - _EDGE - left) / len(values[0])))
    tall = tall or cell
    canvas.width = max(width, left + cell * len(values[0]) + _EDGE)
    top = ceil(top + max((_turned_height(name) for name in names), default=0.0))  # whole numbers: no seams
    for place, name in enumerate(names):
        _column_name(canvas, name, left + (place + 0.5) * cell, top - 5)
    for place, name in enumerate(rows):
        canvas.text(left - 6, top + (place + 0.5) * tall + 4, name, size=_SMALL, anchor="end")
    _cells(canvas, values, (left, top), (cell, tall), low, high)
    bottom = top + tall * len(values)
    canvas.rect(left, top, cell * len(values[0]), bottom - top, "axis")
    if down:
        canvas.text(_EDGE + 9, (top + bottom) / 2, down, "faint", size=_SMALL, anchor="middle", turned=True)
    if across:
        canvas.text(left + cell * len(values[0]) / 2, bottom + 16, across, "faint", size=_SMALL, anchor="middle")
    canvas.height = bottom + (24 if across else 6)
    return canvas


def head(canvas: Canvas, title: str) -> float:
    """The title of a panel; returns the y under it."""
    return canvas.lines(_EDGE, 18, title, canvas.width - 2 * _EDGE, "strong", size=13) - 6


def legend(canvas: Canvas, names: Sequence[tuple[str, int]], top: float, marks: bool = False) -> float:
    """Names of curves in rows, each behind a piece of its curve; returns the y under them."""
    x, y = _EDGE, top + 14
    for name, look in names:
        taken = 34 + text_width(name, _SMALL)
        if x > _EDGE and x + taken > canvas.width - 4:
            x, y = _EDGE, y + 17
        canvas.line(x, y - 4, x + 26, y - 4, f"s{look % 6}")
        if marks:
            canvas.mark(look, x + 13, y - 4)
        canvas.text(x + 32, y, name, size=_SMALL)
        x += taken + 12
    return y + 8


def _areas(canvas: Canvas, names: Sequence[str], top: float) -> float:
    x, y = _EDGE, top + 14
    for look, name in enumerate(names):
        taken = 18 + text_width(name, _SMALL)
        if x > _EDGE and x + taken > canvas.width - 4:
            x, y = _EDGE, y + 17
        canvas.rect(x, y - 10, 12, 12, f"b{look % 5}")
        canvas.text(x + 17, y, name, size=_SMALL)
        x += taken + 12
    return y + 8


def _rows(canvas: Canvas, axis: Axis, up: _Scale, left: float, right: float) -> None:
    for tick in up.ticks:
        canvas.line(left, up(tick), right, up(tick), "grid")
        canvas.text(left - 6, up(tick) + 4, axis.show(tick), "faint", size=_SMALL, anchor="end")


def _steps(canvas: Canvas, axis: Axis, along: _Scale, bottom: float) -> None:
    """Marks under the plot; a name that would touch the one before is left out."""
    free = 0.0
    for tick in along.ticks:
        x, name = along(tick), axis.show(tick)
        half = text_width(name, _SMALL) / 2
        canvas.line(x, bottom, x, bottom + 4, "axis")
        if x - half > free:
            canvas.text(x, bottom + 17, name, "faint", size=_SMALL, anchor="middle")
            free = x + half + 4


def _under(canvas: Canvas, x: float, y: float, name: str, width: float) -> float:
    for line in wrapped(name, width, _SMALL):
        canvas.text(x, y, line, size=_SMALL, anchor="middle")
        y += 14
    return y


def _column_name(canvas: Canvas, name: str, x: float, y: float) -> None:
    """Upright where it is short, else turned."""
    if len(name) <= 1:
        canvas.text(x, y, name, size=_SMALL, anchor="middle")
    else:
        canvas.text(x + 4, y, name, size=_SMALL, turned=True)


def _turned_height(name: str) -> float:
    return 20.0 if len(name) <= 1 else text_width(name, _SMALL) + 10


def _cells(
    canvas: Canvas,
    values: Sequence[Sequence[float]],
    corner: Point,
    size: Point,
    low: float | None,
    high: float | None,
) -> None:
    """One path for each shade, neighbours of one shade in one stroke."""
    flat = [value for row in values for value in row]
    low, high = min(flat) if low is None else low, max(flat) if high is None else high
    paths: dict[int, list[str]] = {}
    for down, row in enumerate(values):
        levels = [round((min(max(v, low), high) - low) / ((high - low) or 1) * _LEVELS) for v in row]
        start = 0
        while start < len(levels):
            end = start + sum(1 for _ in takewhile(lambda one: one == levels[start], levels[start:]))  # noqa: B023
            x, y = corner[0] + start * size[0], corner[1] + down * size[1]
            stroke = f"M{x:.1f} {y:.1f}h{(end - start) * size[0]:.1f}v{size[1]:.1f}h{-(end - start) * size[0]:.1f}z"
            paths.setdefault(levels[start], []).append(stroke)
            start = end
    for level, strokes in sorted(paths.items()):
        if level:
            shade = f'fill-opacity="{level / _LEVELS:.2f}" shape-rendering="crispEdges"'
            canvas.path("".join(strokes), "heat", shade)


def _round(low: float, high: float, _: float) -> list[float]:
    """Some four to six round numbers from below or at `low` to above or at `high`."""
    span = high - low
    power = 10.0 ** floor(log(span / 3, 10))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if span / step <= 6)
    first = ceil(low / step - 1e-9)
    made = [place * step for place in takewhile(lambda n: n * step < high + step * 0.999, count(first))]
    return [round(tick, 12) for tick in made]


def _powers(low: float, high: float, base: float) -> list[float]:
    """Powers of the base between the ends, no more than eight of them; of few tens, their halves and fifths too."""
    first, last = ceil(log(low, base) - 1e-9), floor(log(high, base) + 1e-9)
    if base == 10 and last - first < 2:
        made = [10.0**power * part for power in range(first - 1, last + 1) for part in (1, 2, 5)]
        return [tick for tick in made if low <= tick <= high] or [low, high]
    step = max(1, ceil((last - first + 1) / 8))
    return [base**power for power in range(first, last + 1, step)] or [low, high]


def short_bytes_tick(value: float) -> str:
    """2048 -> `2 KiB`: a round number of bytes."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min(int(log(value, 1024) + 1e-9), len(units) - 1) if value >= 1 else 0
    return f"{short(value / 1024**power)} {units[power]}"
