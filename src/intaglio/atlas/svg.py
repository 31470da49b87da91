"""A small drawing kit: pictures as SVG whose every letter is measured, so that none lies upon another.

Lengths are in the picture's units, about a pixel each where nothing is scaled. Widths are those of DejaVu Sans, which
is wider than most fonts of its kind, rounded up: what fits here fits elsewhere.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from intaglio.atlas.palette import rules_of_a_file

__all__ = ["Box", "Canvas", "as_file", "side_by_side", "text_width", "wrapped"]

_WIDTHS: Final = {  # hundredths of the size
    30: "'IJijl",
    35: " ,./:;\\|",
    40: "()-[]ft",
    50: '!r"*_`–',
    55: "?csz",
    60: "FLkvxy",
    65: "$0123456789EPSTYabdeghnopqu{}",
    70: "ABCKRVXZ",
    75: "NU",
    80: "&DGHOQ",
    85: "#+<=>^w~×→−≤",
    90: "M",
}
_WIDTH_OF: Final = {letter: width / 100 for width, letters in _WIDTHS.items() for letter in letters}
_OTHER: Final = 1.0  # Chinese, and what is rare
_STRONG: Final = 1.15  # bold letters are wider
_UP, _DOWN = 0.78, 0.22  # of the size, above and below the line


@dataclass(frozen=True)
class Box:
    """Where a text lies: from (left, top) to (right, bottom)."""

    left: float
    top: float
    right: float
    bottom: float
    text: str

    def meets(self, other: "Box", slack: float = 0.5) -> bool:
        """Whether the two share more than a hair's breadth."""
        across = min(self.right, other.right) - max(self.left, other.left)
        down = min(self.bottom, other.bottom) - max(self.top, other.top)
        return across > slack and down > slack

    def moved(self, x: float, y: float) -> "Box":
        """The same elsewhere."""
        return Box(self.left + x, self.top + y, self.right + x, self.bottom + y, self.text)


class Canvas:
    """A picture while it is drawn.

    Attributes:
        width, height: of the picture; `height` may grow while it is drawn.
        parts: its elements.
        boxes: of its texts.
    """

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self.parts: list[str] = []
        self.boxes: list[Box] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        look: str = "ink",
        *,
        size: float = 12,
        anchor: str = "start",
        turned: bool = False,
    ) -> float:
        """Writes on the line y, from x on, about x (`middle`) or up to it (`end`); `turned` upwards.

        Returns:
            The width.
        """
        width = text_width(words, size, strong="strong" in look)
        turn = f' transform="rotate(-90 {_n(x)} {_n(y)})"' if turned else ""
        place = f'x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}"'
        end = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self.parts.append(f'<text class="{look}" {place}{end}{turn}>{escape(words)}</text>')
        self.boxes.append(_box(x, y, width, size, anchor, turned, words))
        return width

    def lines(self, x: float, y: float, words: str, width: float, look: str = "ink", *, size: float = 12) -> float:
        """Writes a text in as many lines as it takes; returns the y of the next line."""
        for line in wrapped(words, width, size, strong="strong" in look):
            self.text(x, y, line, look, size=size)
            y += size * 1.35
        return y

    def line(self, x1: float, y1: float, x2: float, y2: float, look: str) -> None:
        """A straight line."""
        self.parts.append(f'<path class="{look}" d="M{_n(x1)} {_n(y1)}L{_n(x2)} {_n(y2)}"/>')

    def path(self, d: str, look: str, more: str = "") -> None:
        """A path as SVG writes it, `more` being further attributes."""
        self.parts.append(f'<path class="{look}" d="{d}"{" " + more if more else ""}/>')

    def polyline(self, points: Iterable[tuple[float, float]], look: str) -> None:
        """Through all points."""
        places = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self.parts.append(f'<polyline class="{look}" points="{places}"/>')

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        look: str,
        *,
        said: str = "",
        round_by: float = 0,
        more: str = "",
    ) -> None:
        """A rectangle; `said` is what the mouse reads on it."""
        corners = f' rx="{_n(round_by)}"' if round_by else ""
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"{corners}'
        tail = f"><title>{escape(said)}</title></rect>" if said else "/>"
        self.parts.append(f'<rect class="{look}" {place}{" " + more if more else ""}{tail}')

    def arrow(self, points: Sequence[tuple[float, float]], head: bool = True) -> None:
        """Straight from point to point, along the axes; the head at the last."""
        self.path("M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points), "arrow")
        if head:
            (x0, y0), (x, y) = points[-2:]
            self.path(_head(x, y, x - x0, y - y0), "head")

    def mark(self, shape: int, x: float, y: float, size: float = 3.5) -> None:
        """The mark of a curve: circle, square, triangle, diamond, cross, ring."""
        look = f"m{shape % 6}"
        if shape % 6 == 0:
            self.parts.append(f'<circle class="{look}" cx="{_n(x)}" cy="{_n(y)}" r="{_n(size)}"/>')
        elif shape % 6 == 5:
            self.parts.append(f'<circle class="{look}" cx="{_n(x)}" cy="{_n(y)}" r="{_n(size)}" fill-opacity="0"/>')
        else:
            self.path(_mark(shape % 6, x, y, size), look)

    def link(self, target: str) -> "_Link":
        """`with canvas.link("#there"):` what is drawn in it leads there."""
        return _Link(self, target)

    def put(self, other: "Canvas", x: float, y: float) -> None:
        """Another picture into this one."""
        self.parts += [f'<g transform="translate({_n(x)} {_n(y)})">', *other.parts, "</g>"]
        self.boxes += [box.moved(x, y) for box in other.boxes]

    def clashes(self) -> list[str]:
        """Texts that lie upon each other or beyond the edge; empty where all is well."""
        met = [f"{a.text!r} on {b.text!r}" for a, b in combinations(self.boxes, 2) if a.meets(b)]
        sheet = Box(0, 0, self.width, self.height, "")
        beyond = [box for box in self.boxes if box.left < -1 or box.top < -1 or _over(box, sheet)]
        return met + [f"{box.text!r} beyond the edge" for box in beyond]

    def svg(self, label: str = "") -> str:
        """As an element that stands in a page; `label` is what it shows, for who cannot see it."""
        size = f'viewBox="0 0 {_n(self.width)} {_n(self.height)}"'
        return "\n".join([f'<svg {size} role="img" aria-label={quoteattr(label)}>', *self.parts, "</svg>"])


class _Link:
    def __init__(self, canvas: Canvas, target: str) -> None:
        self._canvas, self._target = canvas, target

    def __enter__(self) -> None:
        self._canvas.parts.append(f"<a href={quoteattr(self._target)}>")

    def __exit__(self, *_: object) -> None:
        self._canvas.parts.append("</a>")


def text_width(words: str, size: float, *, strong: bool = False) -> float:
    """At most what `words` take."""
    return sum(_WIDTH_OF.get(letter, _OTHER) for letter in words) * size * (_STRONG if strong else 1.0)


def wrapped(words: str, width: float, size: float, *, strong: bool = False) -> list[str]:
    """The text in lines that fit, cut at spaces and, in Chinese, anywhere but before punctuation."""
    lines = [""]
    for piece in _pieces(words):
        if lines[-1] and text_width((lines[-1] + piece).rstrip(), size, strong=strong) > width:
            lines.append("")
        lines[-1] += piece if lines[-1] else piece.lstrip()
    return [line.rstrip() for line in lines]


def _pieces(words: str) -> Iterator[str]:
    piece = ""
    for letter, following in zip(words, [*words[1:], " "], strict=True):
        piece += letter
        if letter == " " or (letter > "\u2e80" and following not in "，。、；：）！？”"):
            yield piece
            piece = ""
    if piece:
        yield piece


def side_by_side(panels: Sequence[Canvas], width: float = 880, gap: float = 20) -> Canvas:
    """Several pictures as one, in rows no wider than `width` unless one alone is."""
    rows: list[list[Canvas]] = [[]]
    for panel in panels:
        if rows[-1] and sum(one.width + gap for one in rows[-1]) + panel.width > width:
            rows.append([])
        rows[-1].append(panel)
    whole = Canvas(max(sum(one.width for one in row) + gap * (len(row) - 1) for row in rows), 0)
    for row in rows:
        x = 0.0
        for panel in row:
            whole.put(panel, x, whole.height)
            x += panel.width + gap
        whole.height += max(one.height for one in row) + gap
    whole.height -= gap
    return whole


def as_file(panels: Sequence[Canvas], label: str) -> str:
    """The picture as an SVG file: paper, margins and style sheet are in it, and nothing else is needed."""
    whole, edge = side_by_side(panels), 16.0
    width, height = whole.width + 2 * edge, whole.height + 2 * edge
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(width)} {_n(height)}"'
    return "\n".join(
        [
            f'{head} width="{_n(width)}" height="{_n(height)}" role="img" aria-label={quoteattr(label)}>',
            f"<style>\n{rules_of_a_file()}\n</style>",
            f'<rect class="blank" width="{_n(width)}" height="{_n(height)}"/>',
            f'<g transform="translate({_n(edge)} {_n(edge)})">',
            *whole.parts,
            "</g>",
            "</svg>\n",
        ]
    )


def _n(value: float) -> str:
    """A number in as few letters as a tenth takes."""
    return f"{value:.1f}".removesuffix(".0")


def _box(x: float, y: float, width: float, size: float, anchor: str, turned: bool, words: str) -> Box:
    before = {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    if turned:
        return Box(x - _UP * size, y - width + before, x + _DOWN * size, y + before, words)
    return Box(x - before, y - _UP * size, x - before + width, y + _DOWN * size, words)


def _over(box: Box, sheet: Box) -> bool:
    return box.right > sheet.right + 1 or box.bottom > sheet.bottom + 1


def _head(x: float, y: float, dx: float, dy: float) -> str:
    """The head of an arrow that came along (dx, dy)."""
    length = max(abs(dx), abs(dy), 1e-9)
    ux, uy = dx / length * 7, dy / length * 7
    left, right = (x - ux - uy / 2, y - uy + ux / 2), (x - ux + uy / 2, y - uy - ux / 2)
    return f"M{_n(x)} {_n(y)}L{_n(left[0])} {_n(left[1])}L{_n(right[0])} {_n(right[1])}Z"


def _mark(shape: int, x: float, y: float, s: float) -> str:
    corners = {
        1: [(-s, -s), (s, -s), (s, s), (-s, s)],
        2: [(0, -s * 1.2), (s * 1.1, s), (-s * 1.1, s)],
        3: [(0, -s * 1.3), (s * 1.3, 0), (0, s * 1.3), (-s * 1.3, 0)],
    }
    if shape == 4:
        return f"M{_n(x - s)} {_n(y - s)}L{_n(x + s)} {_n(y + s)}M{_n(x - s)} {_n(y + s)}L{_n(x + s)} {_n(y - s)}"
    return "M" + "L".join(f"{_n(x + dx)} {_n(y + dy)}" for dx, dy in corners[shape]) + "Z"
