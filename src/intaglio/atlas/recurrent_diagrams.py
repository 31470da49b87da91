"""Recurrent specs as pictures: the network unrolled over three steps, and what its cell does in one."""

from typing import Final

from intaglio.atlas.figure import Say
from intaglio.atlas.svg import Canvas
from intaglio.lineage.recurrent_words import SCORES
from intaglio.specs import CellSpec, GRUCellSpec, LSTMCellSpec, RecurrentSpec, RNNCellSpec, Seq2SeqSpec

__all__ = ["recurrent_diagram", "seq2seq_diagram"]

_STEPS: Final = 3
_WIDE, _TALL, _ACROSS, _DOWN = 62.0, 26.0, 98.0, 50.0


def recurrent_diagram(spec: RecurrentSpec, say: Say, width: float = 400) -> Canvas:
    """Layers of cells over three steps: states go to the right, outputs up."""
    canvas = Canvas(width, 0)
    left = (width - (_STEPS - 1) * _ACROSS) / 2
    top = 16.0
    for step in range(_STEPS):
        canvas.text(left + step * _ACROSS, top, f"y{step + 1}", anchor="middle")
    bottom = _grid(canvas, spec.num_layers, left, top + 26, spec.cell.kind.upper(), both=spec.bidirectional)
    for step in range(_STEPS):
        canvas.text(left + step * _ACROSS, bottom + 18, f"x{step + 1}", anchor="middle")
        canvas.arrow([(left + step * _ACROSS, bottom + 5), (left + step * _ACROSS, bottom - 14)])
    y = bottom + 44
    canvas.text(12, y, say("the same weights at every step", "每一步用同一组权重"), "faint", size=11)
    canvas.height = _cell(canvas, spec.cell, y + 24, say)
    return canvas


def _grid(canvas: Canvas, layers: int, left: float, top: float, name: str, *, both: bool = False) -> float:
    """Rows of cells, the last layer above; returns the y under the first."""
    for row in range(layers):
        y = top + row * _DOWN
        for step in range(_STEPS):
            x = left + step * _ACROSS
            canvas.rect(x - _WIDE / 2, y, _WIDE, _TALL, "box", round_by=4)
            canvas.text(x, y + 17, name, anchor="middle")
            canvas.arrow([(x, y), (x, y - (_DOWN - _TALL if row else 20) + 2)])
            if step + 1 < _STEPS:
                canvas.arrow([(x + _WIDE / 2, y + 10), (x + _ACROSS - _WIDE / 2, y + 10)])
            if both and step:
                canvas.arrow([(x - _WIDE / 2, y + 19), (x - _ACROSS + _WIDE / 2, y + 19)])
    return top + (layers - 1) * _DOWN + _TALL + 16


def _cell(canvas: Canvas, cell: CellSpec, y: float, say: Say) -> float:
    """The road of the cell's state, what it meets on its way, and the equations; returns the height."""
    name = "c" if isinstance(cell, LSTMCellSpec) else "h"
    words = say("what a step does to the state", "一步对状态所做的")
    canvas.text(12, y, words, "faint", size=11)
    canvas.text(16, y + 34, name)
    canvas.arrow([(30, y + 30), (366, y + 30)])
    canvas.text(372, y + 34, name)
    for place, (sign, what) in enumerate(_ON_THE_ROAD[cell.kind]):
        x = 110 + 130 * place
        canvas.parts.append(f'<circle class="box" cx="{x}" cy="{y + 30:.1f}" r="11"/>')
        canvas.text(x, y + 34, sign, anchor="middle")
        canvas.arrow([(x, y + 58), (x, y + 41)])
        canvas.text(x, y + 70, what, size=11, anchor="middle")
    y += 96
    for line in _equations(cell):
        canvas.text(12, y, line, size=11)
        y += 16
    return y


_ON_THE_ROAD: Final = {
    "rnn": (("f", "U, + W x + b"),),
    "lstm": (("×", "f"), ("+", "i × c~")),
    "gru": (("×", "z"), ("+", "(1 - z) × h~")),
}
"""Signs that a cell's state meets from one step to the next, and what comes in there."""


def _equations(cell: CellSpec) -> list[str]:
    match cell:
        case RNNCellSpec(activation=activation):
            return [f"h = {activation}(W x + U h + b)"]
        case LSTMCellSpec():
            gates = "f, i, o = σ(W x + U h + b), c~ = tanh(W x + U h + b)"
            return [gates, "c = f × c + i × c~", "h = o × tanh(c)"]
        case GRUCellSpec(reset="before"):
            candidate = "h~ = tanh(W x + U (r × h) + b)"
        case GRUCellSpec():
            candidate = "h~ = tanh(W x + b + r × (U h + b))"
    return ["z, r = σ(W x + U h + b)", candidate, "h = z × h + (1 - z) × h~"]


def seq2seq_diagram(spec: Seq2SeqSpec, say: Say, width: float = 640) -> Canvas:
    """The encoder's steps, what passes from it, and the decoder's steps."""
    canvas = Canvas(width, 0)
    name, look = spec.cell.kind.upper(), spec.attention
    shift = 46.0 if look else 0.0
    starts, deep = (56.0, width - 56 - 2 * _ACROSS), max(spec.encoder_layers, spec.decoder_layers)
    top = 42 + shift
    for side, layers in enumerate((spec.encoder_layers, spec.decoder_layers)):
        first = top + (deep - layers) * _DOWN
        both = spec.bidirectional and side == 0
        bottom = _grid(canvas, layers, starts[side], first, name, both=both)
        _ends(canvas, starts[side], first - 26, bottom, "xy"[side], say)
    end, begin = starts[0] + 2 * _ACROSS + _WIDE / 2, starts[1] - _WIDE / 2
    for row in range(deep):
        y = top + row * _DOWN + _TALL / 2
        canvas.arrow([(end, y), (begin, y)])
    canvas.text((end + begin) / 2, bottom + 18, say("last state", "最后的状态"), "faint", size=11, anchor="middle")
    if look:
        _look_back(canvas, starts, top - 44, say(f"score: {SCORES[look.score]}", f"打分：{SCORES[look.score]}"), say)
    canvas.height = _cell(canvas, spec.cell, bottom + 48, say)
    return canvas


def _ends(canvas: Canvas, left: float, top: float, bottom: float, letter: str, say: Say) -> None:
    reads, writes = (
        (("x1", "x2", "x3"), ("h1", "h2", "h3")) if letter == "x" else (("<s>", "y1", "y2"), ("y1", "y2", "y3"))
    )
    for step in range(_STEPS):
        x = left + step * _ACROSS
        canvas.text(x, bottom + 18, reads[step], anchor="middle")
        canvas.arrow([(x, bottom + 5), (x, bottom - 14)])
        canvas.text(x, top, writes[step], anchor="middle")


def _look_back(canvas: Canvas, starts: tuple[float, float], y: float, words: str, say: Say) -> None:
    """A line from every state of the source to the steps of the decoder."""
    for step in range(_STEPS):
        x = starts[0] + step * _ACROSS
        canvas.arrow([(x, y), (x, y - 12)], head=False)
    last = starts[1] + 2 * _ACROSS + 24
    canvas.arrow([(starts[0], y - 12), (last, y - 12)], head=False)
    for step in range(_STEPS):
        x = starts[1] + step * _ACROSS + 24
        canvas.arrow([(x, y - 12), (x, y + 44)])
    canvas.text((starts[0] + last) / 2, y - 20, words, "faint", size=11, anchor="middle")
    canvas.text(starts[0], y - 20, say("all states", "所有状态"), "faint", size=11)
