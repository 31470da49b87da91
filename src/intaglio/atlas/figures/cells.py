"""The cells of an RNN, an LSTM and a GRU: every wire of one step, and the numbers that our own cells sent along it.

What happens inside is overheard: torch says what came out of each sigmoid and tanh while `Cell.step` ran. A GRU's two
gates come out of one sigmoid, and are cut apart here.

Legend: I input features, H hidden features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from intaglio.atlas.charts import head
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.matrices import CELL, Matrix, matrix
from intaglio.atlas.svg import Canvas
from intaglio.atlas.wiring import bars, box, joint, sign
from intaglio.parts.recurrent import Cell, build_cell
from intaglio.specs import CellSpec, GRUCellSpec, LSTMCellSpec, RNNCellSpec

__all__ = ["Cells", "one_step"]

_SPECS: Final[dict[str, CellSpec]] = {"rnn": RNNCellSpec(), "lstm": LSTMCellSpec(), "gru": GRUCellSpec()}
_INSIDE: Final = {"rnn": ("tanh",), "lstm": ("f", "i", "c~", "o", "tanh c"), "gru": ("z", "r", "h~")}
"""What the functions of a step give, in the order in which they are called."""

_STATES: Final = ("h", "c")
_WIDTH: Final = 400.0
_END: Final = 392.0


@dataclass(frozen=True)
class Cells(Figure):
    """See above.

    Attributes:
        input_size, hidden_size: I and H.
        spread: what the weights of a fresh cell are multiplied by, so that its gates differ.
        seed: of weights, input and state.
    """

    name: ClassVar[str] = "cells"
    title: ClassVar[Words] = Words("One step of an RNN, an LSTM and a GRU", "RNN、LSTM 与 GRU 的一步")
    claim: ClassVar[Words] = Words(
        "An RNN rewrites its state at every step. An LSTM adds a state that is only multiplied and added to, and "
        "three gates; a GRU has two gates and no second state, the reset gate inside the product.",
        "RNN 每一步都重写整个状态。LSTM 另加一个只做乘和加的状态，配三个门；GRU 只有两个门，没有第二个状态，重置门在"
        "乘积里面。",
    )
    input_size: int = 2
    hidden_size: int = 3
    spread: float = 2.5
    seed: int = 4

    def data(self) -> Any:
        return {name: self._data(name, spec) for name, spec in _SPECS.items()}

    @torch.no_grad()
    def _data(self, name: str, spec: CellSpec) -> dict[str, Any]:
        dice = torch.Generator().manual_seed(self.seed)
        cell = build_cell(spec, self.input_size, self.hidden_size)
        cell.reset_parameters(dice)
        for weight in (cell.input_weight, cell.state_weight):
            weight.mul_(self.spread)
        x = torch.randn(1, self.input_size, generator=dice)
        state = tuple(2 * torch.rand(1, self.hidden_size, generator=dice) - 1 for _ in range(cell.states))
        return {
            **one_step(name, cell, x, state),
            "sets": spec.sets,
            "weights": spec.num_parameters(self.input_size, self.hidden_size),
        }

    def caption(self, data: Any) -> Words:
        kept, new, was, now = (_first(data["lstm"], *path) for path in _CAPTIONED)
        weights = {name: one["weights"] for name, one in data.items()}
        return Words(
            "Each box on the two lower wires has a W, a U and a b of its own, and first makes their sum, W x + U h + "
            f"b. Columns stand on a line: up is positive, gates go from 0 to 1. {self.input_size} input features, "
            f"{self.hidden_size} hidden ones, {weights['rnn']}, {weights['lstm']} and {weights['gru']} parameters "
            f"(random, {self.spread:g} times a fresh cell's, so that the gates differ). The numbers passed in the "
            f"very cells that train here. In the LSTM's first feature {kept:.2f} of the old {was:.2f} stays and "
            f"{new:.2f} of the candidate comes in, which makes {now:.2f}.",
            "接在下面两条线上的每个方框都有自己的 W、U 和 b，先求和 W x + U h + b。柱子立在线上，向上为正，门的取值从"
            f" 0 到 1。{self.input_size} 个输入特征，{self.hidden_size} 个隐藏特征，参数依次为 {weights['rnn']}、"
            f"{weights['lstm']} 和 {weights['gru']} 个（随机，是新单元的 {self.spread:g} 倍，使各个门有差别）。数字来"
            f"自这里用于训练的单元本身。LSTM 的第一个特征：旧值 {was:.2f} 留下 {kept:.2f}，候选值进来 {new:.2f}，得到 "
            f"{now:.2f}。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        return [_rnn(data["rnn"], say), _lstm(data["lstm"], say), _gru(data["gru"], say)]


_CAPTIONED: Final = (("inside", "f"), ("inside", "i"), ("before", "c"), ("after", "c"))


class _Overheard(TorchFunctionMode):
    """Keeps what comes out of sigmoids and tanhs."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.sigmoid, torch.tanh):
            self.heard.append(out)
        return out


def one_step(name: str, cell: Cell, x: Tensor, state: tuple[Tensor, ...]) -> dict[str, Any]:
    """What passed in one step of a cell, from x (1, I) and its state: `x`, `before`, `inside`, `after`."""
    with _Overheard() as overheard:
        after = cell.step(x, state)
    parts = [part for out in overheard.heard for part in out[0].split(cell.hidden_size)]
    return {
        "x": x[0].tolist(),
        "before": _named(_STATES, [part[0] for part in state]),
        "inside": _named(_INSIDE[name], parts),
        "after": _named(_STATES, [part[0] for part in after]),
    }


def _named(names: Sequence[str], parts: Sequence[Tensor]) -> dict[str, list[float]]:
    return {name: part.tolist() for name, part in zip(names, parts, strict=False)}


def _first(data: Any, *path: str) -> float:
    """The first feature of what lies there."""
    return float(data[path[0]][path[1]][0])


def _rnn(data: Any, say: Say) -> Canvas:
    canvas = Canvas(_WIDTH, 0)
    top = head(canvas, say("RNN: one function, no gate", "RNN：一个函数，没有门")) + 20
    middle, x = top + 24, 205.0
    rails = (middle + 60, middle + 104)
    _inputs(canvas, data, rails, (x, x), (x,))
    _gate(canvas, x, middle, "tanh", rails)
    canvas.arrow([(x + 23, middle), (_END, middle)])
    bars(canvas, 300, middle - 24, data["after"]["h"])
    canvas.text(_END, middle - 20, "h", anchor="end")
    canvas.height = _table(canvas, data, rails[1] + 40, say)
    return canvas


def _lstm(data: Any, say: Say) -> Canvas:
    canvas = Canvas(_WIDTH, 0)
    road = head(canvas, say("LSTM: the road of c, and three gates", "LSTM：c 的直路与三个门")) + 44
    gates, meet, out = road + 146, road + 44, road + 84
    places = {"f": 84.0, "i": 148.0, "c~": 212.0, "o": 276.0}
    _inputs(canvas, data, (gates + 46, gates + 90), (276, 276), tuple(places.values()))
    for name, x in places.items():
        _gate(canvas, x, gates, "tanh" if name == "c~" else "σ", (gates + 46, gates + 90))
        canvas.text(x - 8, gates - 19, name, anchor="end")
        bars(canvas, x + 6, gates - 32, data["inside"][name], signed=name == "c~", thick=7)
    most = max(1.0, *(abs(value) for key in ("before", "after") for value in data[key]["c"]))
    _ends(canvas, road, "c", data, most, (12, 344))
    canvas.arrow([(places["f"], gates - 12), (places["f"], road + 10)])
    canvas.arrow([(places["i"], gates - 12), (places["i"], meet), (170, meet)])
    canvas.arrow([(places["c~"], gates - 12), (places["c~"], meet), (190, meet)])
    canvas.arrow([(180, meet - 10), (180, road + 10)])
    canvas.arrow([(312, road), (312, road + 28)])
    joint(canvas, 312, road)
    box(canvas, 312, road + 39, "tanh", wide=40, tall=22)
    canvas.arrow([(312, road + 50), (312, out - 10)])
    canvas.arrow([(places["o"], gates - 12), (places["o"], out), (302, out)])
    canvas.arrow([(322, out), (_END, out)])
    bars(canvas, 344, out + 22, data["after"]["h"])
    canvas.text(_END, out - 7, "h", anchor="end")
    for x, y, letter in ((places["f"], road, "×"), (180, road, "+"), (180, meet, "×"), (312, out, "×")):
        sign(canvas, x, y, letter)
    canvas.height = _table(canvas, data, gates + 128, say)
    return canvas


def _gru(data: Any, say: Say) -> Canvas:
    canvas = Canvas(_WIDTH, 0)
    road = head(canvas, say("GRU: two gates, one state", "GRU：两个门，一个状态")) + 44
    gates, meet = road + 128, road + 48
    places = {"r": 84.0, "z": 176.0, "h~": 280.0}
    rails = (gates + 60, gates + 104)
    _inputs(canvas, data, rails, (176, 280), (places["r"], places["z"]), (places["h~"],))
    for name, x in places.items():
        _gate(canvas, x, gates, "tanh" if name == "h~" else "σ", rails, state=name != "h~")
        canvas.text(x - 8, gates - 19, name, anchor="end")
        bars(canvas, x + 6, gates - 32, data["inside"][name], signed=name == "h~", thick=7)
    _ends(canvas, road, "h", data, 1.0, (12, 344))
    canvas.arrow([(places["r"], gates - 12), (places["r"], meet + 10)])
    canvas.arrow([(places["r"], road), (places["r"], meet - 10)])
    joint(canvas, places["r"], road)
    inner = gates + 28
    canvas.arrow([(94, meet), (124, meet), (124, inner), (272, inner), (272, gates + 12)])
    canvas.text(132, meet + 4, "r × h", size=11)
    canvas.arrow([(places["z"], gates - 12), (places["z"], road + 10)])
    joint(canvas, places["z"], meet)
    canvas.arrow([(places["z"], meet), (206, meet)])
    box(canvas, 226, meet, "1 - z", wide=40, tall=22)
    canvas.arrow([(246, meet), (270, meet)])
    canvas.arrow([(places["h~"], gates - 12), (places["h~"], meet + 10)])
    canvas.arrow([(places["h~"], meet - 10), (places["h~"], road + 10)])
    for x, y, letter in ((84, meet, "×"), (176, road, "×"), (280, meet, "×"), (280, road, "+")):
        sign(canvas, x, y, letter)
    canvas.height = _table(canvas, data, rails[1] + 38, say)
    return canvas


def _ends(canvas: Canvas, y: float, name: str, data: Any, most: float, places: tuple[float, float]) -> None:
    """The road that a state takes, with what it is at both ends."""
    canvas.arrow([(places[0], y), (_END, y)])
    for x, when in zip(places, ("before", "after"), strict=True):
        bars(canvas, x, y - 24, data[when][name], most=most)
        canvas.text(x + 34, y - 10, name)


def _inputs(
    canvas: Canvas,
    data: Any,
    rails: tuple[float, float],
    ends: tuple[float, float],
    both: Sequence[float],
    x_alone: Sequence[float] = (),
) -> None:
    """The state before and the input, each on a wire along which the gates stand."""
    largest = max(1.0, *(abs(value) for value in data["x"]))
    for name, values, y, end, aside in zip(
        ("h", "x"), (data["before"]["h"], data["x"]), rails, ends, (-8, 8), strict=True
    ):
        canvas.text(12, y - 4, name)
        bars(canvas, 26, y, values, most=largest if name == "x" else 1.0)
        canvas.arrow([(60, y), (end + aside, y)], head=False)
        gates = (*both, *x_alone) if name == "x" else both
        for x in gates:
            if x != max(gates):
                joint(canvas, x + aside, y)


def _gate(canvas: Canvas, x: float, y: float, words: str, rails: tuple[float, float], *, state: bool = True) -> None:
    """W x + U h + b and a function of it, fed from both wires."""
    box(canvas, x, y, words)
    for rail, aside in zip(rails, (-8, 8), strict=True):
        if state or aside > 0:
            canvas.arrow([(x + aside, rail), (x + aside, y + 12)])


def _table(canvas: Canvas, data: Any, y: float, say: Say) -> float:
    """All numbers, in three groups; returns the y under them."""
    groups = (
        (say("in", "进"), {"x": data["x"], **data["before"]}),
        (say("inside", "其中"), data["inside"]),
        (say("out", "出"), data["after"]),
    )
    deepest = y
    for (words, rows), x, left in zip(groups, (12.0, 130.0, 286.0), (18.0, 48.0, 18.0), strict=True):
        canvas.text(x, y, words, "faint", size=11)
        for place, (name, values) in enumerate(rows.items()):
            top = y + 8 + (CELL[1] + 3) * place
            canvas.text(x, top + 13, name, size=11)
            matrix(canvas, x + left, top, Matrix("", [values]))
            deepest = max(deepest, top + CELL[1])
    return deepest + 8
