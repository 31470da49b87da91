"""Curves as SVG that stands in a page: colours, letters and dashes are the page's classes, so that they suit its theme.

The classes are `axis`, `grid`, `name`, and `s0`, `s1`, ... of the series, with `faint` for those that stand behind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log, log10

__all__ = ["Chart", "Line", "chart_svg", "short"]

Point = tuple[float, float]

_WIDTH, _HEIGHT = 400, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 16, 14, 42
_MANY = 8  # from a factor of so much on, x is drawn by its logarithm


@dataclass(frozen=True)
class Line:
    """One curve.

    Attributes:
        points: (x, y), x rising.
        colour: its place among the colours.
        faint: dashed, as a second figure of the same series.
        named: what the mouse reads at each point.
    """

    points: Sequence[Point]
    colour: int
    faint: bool = False
    named: str = ""


@dataclass(frozen=True)
class Chart:
    """Curves over one axis.

    Attributes:
        title: what y is, with its unit.
        across: what x is.
        lines: the curves.
        marks: whether each point is a measurement with a mark of its own, and a tick on the axis.
        top: the end of the y axis; None for a round number above all points.
    """

    title: str
    across: str
    lines: Sequence[Line]
    marks: bool = True
    top: float | None = None


class _Scale:
    """From values to places."""

    def __init__(self, chart: Chart) -> None:
        points = [point for line in chart.lines for point in line.points]
        self.xs = sorted({x for x, _ in points})
        self.low, self.high = self.xs[0], self.xs[-1]
        self.logarithmic = self.low > 0 and self.high >= _MANY * self.low
        self.step = _step(chart.top or max(y for _, y in points))
        self.top = chart.top or self.step * (floor(max(y for _, y in points) / self.step) + 1)

    def x(self, value: float) -> float:
        """Pixels from the left."""
        if self.high == self.low:
            return (_LEFT + _WIDTH - _RIGHT) / 2
        share = (value - self.low) / (self.high - self.low)
        if self.logarithmic:
            share = log(value / self.low) / log(self.high / self.low)
        return _LEFT + 12 + share * (_WIDTH - _LEFT - _RIGHT - 24)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return _HEIGHT - _BOTTOM - value / self.top * (_HEIGHT - _TOP - _BOTTOM)


def chart_svg(chart: Chart) -> str:
    """The picture; nothing where there is no point."""
    if not any(line.points for line in chart.lines):
        return ""
    scale = _Scale(chart)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(chart.title)}">',
        *_rows(scale),
        *_columns(chart, scale),
        *(part for line in chart.lines if line.points for part in _line(line, scale, chart.marks)),
        "</svg>",
    ]
    return "\n".join(parts)


def _rows(scale: _Scale) -> Iterator[str]:
    value = 0.0
    while value <= scale.top * 1.001:
        y = scale.y(value)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="name" x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>'
        value += scale.step


def _columns(chart: Chart, scale: _Scale) -> Iterator[str]:
    """The values of x that were measured, or round ones; a name that would touch the one before is left out."""
    bottom, free = _HEIGHT - _BOTTOM, 0.0
    for value in scale.xs if chart.marks else _round_values(scale):
        x, text = scale.x(value), short(value)
        yield f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
        half = 3.6 * len(text)
        if x - half > free:
            yield f'<text class="name" x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{text}</text>'
            free = x + half + 6
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield f'<text class="name" x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(chart.across)}</text>'


def _round_values(scale: _Scale) -> Iterator[float]:
    if scale.logarithmic:
        for power in range(floor(log10(scale.low)), floor(log10(scale.high)) + 1):
            yield from (10.0**power * f for f in (1, 2, 5) if scale.low <= 10.0**power * f <= scale.high)
    else:
        step = _step(scale.high - scale.low) if scale.high > scale.low else 1.0
        place = floor(scale.low / step) + (scale.low % step > 0)
        while place * step <= scale.high:
            yield place * step
            place += 1


def _line(line: Line, scale: _Scale, marks: bool) -> Iterator[str]:
    behind = " faint" if line.faint else ""
    path = " ".join(f"{scale.x(x):.1f},{scale.y(min(y, scale.top)):.1f}" for x, y in line.points)
    yield f'<polyline class="s{line.colour}{behind}" points="{path}"/>'
    for x, y in line.points if marks else ():
        said = f"{line.named}: {short(y)} at {short(x)}"
        yield (
            f'<circle class="s{line.colour}{behind}" cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="3.5">'
            f"<title>{escape(said)}</title></circle>"
        )


def _step(span: float) -> float:
    """A round number that goes into the span three to six times or so."""
    if span <= 0:
        return 1.0
    power = 10.0 ** floor(log10(span / 3))
    return next(step for step in (power, 2 * power, 5 * power, 10 * power) if span / step <= 6)


def short(value: float | None) -> str:
    """Three figures that count, and no more letters than that takes."""
    if value is None:
        return "–"
    if value == 0 or 0.001 <= abs(value) < 9999.5:
        digits = 0 if value == 0 else max(0, 2 - floor(log10(abs(value))))
        text = f"{value:.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    if 9999.5 <= abs(value) < 999.5e6:
        scaled, unit = (value / 1e3, "k") if abs(value) < 999.5e3 else (value / 1e6, "M")
        return f"{short(scaled)}{unit}"
    return f"{value:.2g}"
