"""Activations and their derivatives, and what a gate does to the branch beside it: computed by the parts "
"themselves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from intaglio.atlas.charts import Axis, Curve, chart
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.svg import Canvas
from intaglio.lineage.decoder_words import feed_forward_word
from intaglio.parts.feed_forward import ACTIVATIONS, build_activation, gate_with
from intaglio.specs import FeedForwardSpec, SwishSpec

__all__ = ["Activations", "Gates"]

_BENDS = {"ReLU": "relu", "GELU": "gelu", "SiLU": "silu"}
_GATES = ("sigmoid", "relu", "gelu", "silu")


@dataclass(frozen=True)
class Activations(Figure):
    """See above.

    Attributes:
        reach: x goes from -reach to reach.
        points: of a curve.
        betas: of Swish.
    """

    name: ClassVar[str] = "activations"
    title: ClassVar[Words] = Words("Activations and their derivatives", "激活函数及其导数")
    claim: ClassVar[Words] = Words(
        "ReLU is cheap, but cuts hard and passes no gradient below 0; GELU and SiLU bend smoothly and keep one.",
        "ReLU 便宜，但切得硬，0 以下没有梯度；GELU 与 SiLU 平滑弯曲，保留梯度。",
    )
    reach: float = 5.0
    points: int = 101
    betas: tuple[float, ...] = (0.5, 1.0, 2.0, 8.0)

    def data(self) -> Any:
        functions: dict[str, Callable[[Tensor], Tensor]] = {name: ACTIVATIONS[key] for name, key in _BENDS.items()}
        swishes = {f"β = {beta:g}": build_activation(SwishSpec(beta=beta)) for beta in self.betas}
        x = torch.linspace(-self.reach, self.reach, self.points)
        return {
            "x": x.tolist(),
            "functions": {name: _both(f, x) for name, f in functions.items()},
            "swish": {name: _both(f, x) for name, f in swishes.items()},
        }

    def caption(self, data: Any) -> Words:
        lowest = {name: min(both["value"]) for name, both in data["functions"].items()}
        highest = {name: max(both["slope"]) for name, both in data["functions"].items()}
        numbers = f"GELU {lowest['GELU']:.2f}, SiLU {lowest['SiLU']:.2f}"
        slopes = f"GELU {highest['GELU']:.2f}, SiLU {highest['SiLU']:.2f}"
        return Words(
            "Values and derivatives (by autograd) of the functions that the feed-forward calls. Their lowest "
            f"values: {numbers}; their steepest slopes: {slopes}. Swish is x·σ(βx): flat bends for small β, ReLU's "
            "corner for large; at β = 1 it is SiLU.",
            f"前馈层所调用函数的值与（自动求导得到的）导数。最低值：{numbers}；最大斜率：{slopes}。Swish 是 "
            "x·σ(βx)：β 小则平缓，β 大则趋近 ReLU 的折角；β = 1 即 SiLU。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        x = Axis("x", high=data["x"][-1])
        value, slope = say("value", "值"), say("derivative", "导数")
        panels = [
            ("functions", "value", say("Activations", "激活函数"), Axis(value, low=-1, high=5)),
            ("functions", "slope", say("Their derivatives", "它们的导数"), Axis(slope, low=-0.25, high=1.25)),
            ("swish", "value", say("Swish by its β", "不同 β 的 Swish"), Axis(value, low=-1, high=5)),
            ("swish", "slope", say("Its derivatives", "它的导数"), Axis(slope, low=-0.25, high=1.25)),
        ]
        return [
            chart(
                title,
                [_curve(name, data["x"], one[what], look) for look, (name, one) in enumerate(data[key].items())],
                x,
                y,
            )
            for key, what, title, y in panels
        ]


@dataclass(frozen=True)
class Gates(Figure):
    """What comes out of a gated feed-forward's middle, by its gate, for a few values beside it."""

    name: ClassVar[str] = "gates"
    title: ClassVar[Words] = Words("The GLU family's two branches", "GLU 家族的两条分支")
    claim: ClassVar[Words] = Words(
        "A value branch times a gate branch: the gate is a sigmoid (GLU), ReLU (ReGLU), GELU (GEGLU) or SiLU "
        "(SwiGLU: LLaMA, Qwen, DeepSeek).",
        "值分支乘以门分支：门是 sigmoid（GLU）、ReLU（ReGLU）、GELU（GEGLU）或 SiLU（SwiGLU：LLaMA、Qwen、DeepSeek）。",
    )
    reach: float = 4.0
    points: int = 81
    values: tuple[float, ...] = (-2.0, -1.0, 1.0, 2.0)

    def data(self) -> Any:
        gate = torch.linspace(-self.reach, self.reach, self.points)
        return {"gate": gate.tolist(), "values": list(self.values), "families": dict(map(self._family, _GATES))}

    def _family(self, activation: Any) -> tuple[str, list[list[float]]]:
        """Its name, and what comes out for each value."""
        gate = torch.linspace(-self.reach, self.reach, self.points)
        spec = FeedForwardSpec(intermediate_size=1, activation=activation, gated=True)
        bend = build_activation(spec.activation)
        outs = [gate_with(bend, gate, torch.full_like(gate, value)).tolist() for value in self.values]
        return feed_forward_word(spec), outs

    def caption(self, data: Any) -> Words:
        return Words(
            "One feature: the gate branch goes along x, the value branch is one of four numbers, and the curve is "
            "their product after the gate's bend. A sigmoid only lets through a share; the others also scale by "
            "the gate, so that the product of two branches is nearly quadratic where the gate is open.",
            "单个特征：门分支沿 x 变化，值分支取四个数之一，曲线是门弯曲后两者之积。sigmoid 只放行一部分；其余还按"
            "门的大小缩放，门打开处近似两分支的二次乘积。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        x = Axis(say("gate branch", "门分支"), high=data["gate"][-1])
        y = Axis(say("out", "输出"), low=-8, high=8)
        values = [say(f"value {value:g}", f"值 {value:g}") for value in data["values"]]
        return [
            chart(
                name,
                [
                    _curve(said, data["gate"], out, look)
                    for look, (said, out) in enumerate(zip(values, outs, strict=True))
                ],
                x,
                y,
            )
            for name, outs in data["families"].items()
        ]


def _both(function: Callable[[Tensor], Tensor], x: Tensor) -> dict[str, list[float]]:
    x = x.clone().requires_grad_()
    value = function(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    return {"value": value.tolist(), "slope": slope.tolist()}


def _curve(name: str, xs: Sequence[float], ys: Sequence[float], look: int) -> Curve:
    return Curve(name, list(zip(xs, ys, strict=True)), look)
