"""A recurrent network unrolled, stacked and in both directions, and which outputs see which inputs.

Nothing says who sees whom: each input is changed alone, and the outputs of the real network that move are those that
see it. A stacked network's lower layer is asked too.

Legend: T tokens, H hidden features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from intaglio.atlas.charts import field, head
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.svg import Canvas
from intaglio.atlas.wiring import box
from intaglio.parts.recurrent import Recurrent
from intaglio.specs import RNNCellSpec

__all__ = ["Bidirectional", "seen_inputs"]

_TITLES: Final = {
    "unrolled": Words("Unrolled: one cell, used at every step", "展开：同一个单元，每一步都用它"),
    "stacked": Words("Stacked: outputs are the next layer's inputs", "堆叠：一层的输出是上一层的输入"),
    "bidirectional": Words("Bidirectional: a second cell reads from the end", "双向：另一个单元从末尾往回读"),
}
_WIDTH: Final = 400.0
_LEFT: Final = 64.0
_CELL: Final = 40.0


@dataclass(frozen=True)
class Bidirectional(Figure):
    """See above.

    Attributes:
        tokens: of the text.
        size: features of inputs and states.
        asked: the output whose inputs are filled, from 1 on.
    """

    name: ClassVar[str] = "bidirectional"
    title: ClassVar[Words] = Words("An RNN unrolled, stacked, bidirectional", "RNN：展开、堆叠、双向")
    claim: ClassVar[Words] = Words(
        "One cell is used at every step. In a stack the outputs of one layer are the inputs of the next. A tagger "
        "reads in both directions, because a tag needs what follows.",
        "每一步用同一个单元。堆叠时，一层的输出序列是上一层的输入。标注要双向读，因为标签取决于后文。",
    )
    tokens: int = 5
    size: int = 4
    asked: int = 2

    def data(self) -> Any:
        torch.manual_seed(0)
        one, two, both = (
            Recurrent(RNNCellSpec(), self.size, self.size, layers, ways)
            for layers, ways in ((1, False), (2, False), (1, True))
        )
        halves = {
            "→": lambda x: both(x)[0][..., : self.size],
            "←": lambda x: both(x)[0][..., self.size :],
            "y": lambda x: both(x)[0],
        }
        return {
            "seen": {
                "unrolled": {"y": self._seen(lambda x: one(x)[0])},
                "stacked": {"y": self._seen(lambda x: two(x)[0])},
                "bidirectional": {name: self._seen(half) for name, half in halves.items()},
            },
            "parameters": [sum(p.numel() for p in model.parameters()) for model in (one, two, both)],
            "asked": self.asked - 1,
        }

    def _seen(self, outputs: Callable[[Tensor], Tensor]) -> list[list[int]]:
        x = torch.randn(1, self.tokens, self.size, generator=torch.Generator().manual_seed(1))
        return seen_inputs(outputs, x).int().tolist()

    def caption(self, data: Any) -> Words:
        one, two, both = data["parameters"]
        seen = {name: sum(fields["y"][data["asked"]]) for name, fields in data["seen"].items()}
        asked, tokens = data["asked"] + 1, len(data["seen"]["unrolled"]["y"])
        return Words(
            f"Filled are the inputs that output {asked} sees: {seen['unrolled']} of {tokens} in one direction, "
            f"however many layers, and {seen['bidirectional']} in two. The fields ask every output (rows) about every "
            "input (columns): each input of the real network was changed alone, and what moved is filled. An output "
            "of two directions is two halves side by side; what → saw of the past and ← of the future together is "
            f"the whole. {one}, {two} and {both} parameters, for a text of any length.",
            f"填色的是输出 {asked} 看得到的输入：单向时 {tokens} 个中的 {seen['unrolled']} 个，层数再多也一样；双向时 "
            f"{seen['bidirectional']} 个。方图对每个输出（行）问每个输入（列）：逐个改动真实网络的输入，动了的就填色。"
            f"双向的输出是并排的两半：→ 看到过去，← 看到将来，合起来是全部。参数依次为 {one}、{two} 和 {both} 个，与文"
            "本长度无关。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        return [_panel(name, fields, data["asked"], say) for name, fields in data["seen"].items()]


@torch.no_grad()
def seen_inputs(outputs: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """(T, T), True where the row's output moves with the column's input.

    Args:
        outputs: of a network, from (1, T, I) to (1, T, H).
        x: its input.
    """
    plain = outputs(x)
    columns = []
    for place in range(x.shape[1]):
        other = x.clone()
        other[:, place] += 1.0
        columns.append((outputs(other) - plain).abs().amax(dim=-1)[0] > 1e-7)
    return torch.stack(columns, dim=1)


def _panel(name: str, fields: dict[str, Any], asked: int, say: Say) -> Canvas:
    canvas = Canvas(_WIDTH, 0)
    top = head(canvas, say(*_TITLES[name])) + 18
    tokens = len(fields["y"])
    across = (_WIDTH - 2 * _LEFT) / (tokens - 1)
    places = [_LEFT + across * place for place in range(tokens)]
    for place, x in enumerate(places):
        _token(canvas, x, top, f"y{place + 1}", filled=place == asked)
    bottom = (_both if name == "bidirectional" else _layers)(canvas, places, top, 2 if name == "stacked" else 1)
    for place, x in enumerate(places):
        _token(canvas, x, bottom, f"x{place + 1}", filled=bool(fields["y"][asked][place]))
    x, y = 12.0, bottom + 24
    for half, seen in fields.items():
        drawn = _field(half, seen, say)
        canvas.put(drawn, x, y)
        x += drawn.width + 4
    canvas.height = y + drawn.height
    return canvas


def _layers(canvas: Canvas, places: Sequence[float], top: float, layers: int) -> float:
    """Rows of cells, states to the right and outputs up; returns the y of the inputs."""
    for row in range(layers):
        y = top + 46 + 46 * row
        for here, following in zip(places, [*places[1:], None], strict=True):
            canvas.arrow([(here, y - 12), (here, y - 34)])
            if following is not None:
                canvas.arrow([(here + _CELL / 2, y), (following - _CELL / 2, y)])
            box(canvas, here, y, "RNN", wide=_CELL)
    for x in places:
        canvas.arrow([(x, y + 34), (x, y + 12)])
    return y + 46


def _both(canvas: Canvas, places: Sequence[float], top: float, _: int) -> float:
    """A cell from the left above, another from the right below it; both read the input, and both make the output."""
    there, back = top + 48, top + 96
    for here, following in zip(places, [*places[1:], None], strict=True):
        left, right = here - 9, here + 9
        canvas.arrow([(left, there - 12), (left, top + 12)])
        canvas.arrow([(right + 7, back - 12), (right + 7, top + 24), (right, top + 24), (right, top + 12)])
        canvas.arrow([(here - 13, back + 34), (here - 13, there + 12)])
        canvas.arrow([(right, back + 34), (right, back + 12)])
        if following is not None:
            canvas.arrow([(left + 14, there), (following - 23, there)])
            canvas.arrow([(following - 5, back), (right + 15, back)])
        box(canvas, left, there, "→", wide=28)
        box(canvas, right, back, "←", wide=28)
    return back + 46


def _token(canvas: Canvas, x: float, y: float, name: str, *, filled: bool) -> None:
    canvas.rect(x - 15, y - 11, 30, 22, "b1" if filled else "box", round_by=3)
    canvas.text(x, y + 4, name, "on1" if filled else "ink", anchor="middle")


def _field(name: str, seen: Any, say: Say) -> Canvas:
    words = {"→": "→", "←": "←", "y": say("output y", "输出 y")}
    return field(words[name], seen, low=0, high=1, across=say("input", "输入"), cell=15, width=112)
