"""The timeline of a pipeline as a picture (SVG): a row for each rank, a box for each action. No torch.

Colours tell forwards, backwards and the halves of backwards apart, darker ones a rank's later stages; the number in a
box is the micro-batch's, and what a box is can be read where the mouse rests on it.
"""

from collections.abc import Iterator, Sequence
from itertools import count
from math import floor, log10
from pathlib import Path
from xml.sax.saxutils import escape

from intaglio.files import whole_file
from intaglio.planning.schedules import Kind
from intaglio.planning.simulation import Run, Slot

__all__ = ["draw_timeline", "timeline_svg"]

WORDS: dict[Kind, str] = {
    "F": "forward",
    "B": "backward",
    "I": "backward of the input",
    "W": "backward of the weights",
}
_SHADES: dict[Kind, tuple[str, str]] = {  # of a rank's first stage, and of its last
    "F": ("#bcd7f2", "#4a86c5"),
    "B": ("#fbd5a5", "#dd8a2e"),
    "I": ("#b7e2ca", "#3f9b70"),
    "W": ("#e0d2f3", "#9a78cc"),
}
_LEFT, _TOP, _ROW, _GAP, _WIDTH, _LETTER = 70, 76, 30, 6, 1120, 6.6
_FONT = "font-family='system-ui, Helvetica, Arial, sans-serif'"


def draw_timeline(path: Path, run: Run, title: str, unit: str = "forwards of one micro-batch") -> None:
    """Writes the picture.

    Args:
        path: the SVG file.
        run: of the pipeline.
        title: in its first line.
        unit: of the times.

    Raises:
        UserError: the file cannot be written.
    """
    with whole_file(path) as beside:
        beside.write_text(timeline_svg(run, title, unit), encoding="utf-8")


def timeline_svg(run: Run, title: str, unit: str = "forwards of one micro-batch") -> str:
    """The picture as text; see `draw_timeline`."""
    scale = _WIDTH / run.makespan
    bottom = _TOP + len(run.rows) * (_ROW + _GAP)
    height, width = bottom + 52, _LEFT + _WIDTH + 24
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}' "
        f"{_FONT} font-size='12' fill='#333'>",
        f"<rect width='{width}' height='{height}' fill='#ffffff'/>",
        f"<text x='{_LEFT}' y='28' font-size='17' fill='#111'>{escape(title)}</text>",
        *_legend(run),
        *(part for rank, row in enumerate(run.rows) for part in _row(run, rank, row, scale)),
        *_axis(run.makespan, scale, bottom, unit),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _legend(run: Run) -> Iterator[str]:
    """What the colours mean: of the kinds that occur."""
    kinds = dict.fromkeys(
        slot.action.kind for kind in "FBIW" for row in run.rows for slot in row if slot.action.kind == kind
    )
    x = float(_LEFT)
    for kind in kinds:
        for place in range(run.table.chunks):
            fill = _shade(kind, place, run.table.chunks)
            yield f"<rect x='{x:.1f}' y='44' width='14' height='14' rx='2' fill='{fill}'/>"
            x += 16
        yield f"<text x='{x + 4:.1f}' y='55.5'>{WORDS[kind]}</text>"
        x += 26 + _LETTER * len(WORDS[kind])
    chunks = f"lighter to darker: a rank's {run.table.chunks} stages; " if run.table.chunks > 1 else ""
    yield f"<text x='{_LEFT + _WIDTH}' y='55.5' text-anchor='end' fill='#666'>{chunks}grey: waiting</text>"


def _row(run: Run, rank: int, row: Sequence[Slot], scale: float) -> Iterator[str]:
    y = _TOP + rank * (_ROW + _GAP)
    yield f"<text x='{_LEFT - 10}' y='{y + _ROW / 2 + 4}' text-anchor='end'>rank {rank}</text>"
    yield f"<rect x='{_LEFT}' y='{y}' width='{_WIDTH}' height='{_ROW}' fill='#f1f1ee'/>"
    for slot in row:
        yield from _box(run, slot, _LEFT + slot.start * scale, y, (slot.end - slot.start) * scale)


def _box(run: Run, slot: Slot, x: float, y: int, width: float) -> Iterator[str]:
    action, table = slot.action, run.table
    place = table.held[slot.rank].index(action.stage)
    fill = _shade(action.kind, place, table.chunks)
    said = f"{WORDS[action.kind]} of micro-batch {action.micro_batch} in stage {action.stage}"
    yield (
        f"<rect x='{x:.2f}' y='{y}' width='{width:.2f}' height='{_ROW}' fill='{fill}' stroke='#ffffff' "
        f"stroke-width='{min(1.0, width / 6):.2f}'><title>{said}: {slot.start:.4g} to {slot.end:.4g}</title></rect>"
    )
    if width >= _LETTER * len(str(action.micro_batch)) + 2:
        colour = "#ffffff" if place and place == table.chunks - 1 else "#222222"
        yield (
            f"<text x='{x + width / 2:.2f}' y='{y + _ROW / 2 + 4}' text-anchor='middle' fill='{colour}' "
            f"font-size='11' pointer-events='none'>{action.micro_batch}</text>"
        )


def _shade(kind: Kind, place: int, chunks: int) -> str:
    """Between the two colours of a kind, by the stage's place on its rank."""
    light, dark = ([int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in _SHADES[kind])
    share = place / (chunks - 1) if chunks > 1 else 0.0
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(light, dark, strict=True))


def _axis(makespan: float, scale: float, bottom: int, unit: str) -> Iterator[str]:
    step = _step(makespan)
    for place in count():
        x = _LEFT + place * step * scale
        if place * step > makespan:
            break
        yield f"<line x1='{x:.2f}' x2='{x:.2f}' y1='{bottom}' y2='{bottom + 5}' stroke='#999'/>"
        mark = f"<text x='{x:.2f}' y='{bottom + 19}' text-anchor='middle' font-size='11' fill='#666'>"
        yield f"{mark}{place * step:g}</text>"
    yield f"<text x='{_LEFT + _WIDTH}' y='{bottom + 38}' text-anchor='end' fill='#666'>time in {escape(unit)}</text>"


def _step(makespan: float) -> float:
    """A round number that goes into the whole ten to twenty times or so."""
    power = 10.0 ** floor(log10(makespan / 12))
    return float(next(step for step in (1 * power, 2 * power, 5 * power, 10 * power) if makespan / step <= 20))
