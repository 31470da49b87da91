"""Positions: the raw index, its share of the length, sinusoids and rotary angles, from the modules that make them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from intaglio.atlas.charts import Axis, Curve, chart, field
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.svg import Canvas
from intaglio.parts.position import Rotary, SinusoidalPositions, rotate
from intaglio.specs import LinearScaling, Llama3Scaling, RotarySpec, YarnScaling

__all__ = ["AddedPositions", "RotaryPositions"]


@dataclass(frozen=True)
class AddedPositions(Figure):
    """What may be added to an embedding so that a token knows its place.

    Attributes:
        lengths: of sequences.
        places: rows of the heat map.
        size: features of a position.
        starts: places from which the inner product is followed.
        reach: how far.
    """

    name: ClassVar[str] = "positions"
    title: ClassVar[Words] = Words("Positions that are added", "相加的位置")
    claim: ClassVar[Words] = Words(
        "The raw index grows without bound, pos/(T-1) changes its meaning with the length; sinusoids are bounded, "
        "unique, and their inner product shows the distance.",
        "原始下标无界增长，pos/(T-1) 的含义随长度改变；正弦波有界、唯一，内积只显示距离。",
    )
    lengths: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    places: int = 64
    size: int = 64
    starts: tuple[int, ...] = (0, 50, 500)
    reach: int = 60

    def data(self) -> Any:
        waves = SinusoidalPositions(self.size, "halves")
        table = waves(torch.arange(self.places)[None])[0]
        return {
            "raw": [[t, t - 1] for t in self.lengths],
            "step": [[t, float(torch.linspace(0, 1, t)[1])] for t in self.lengths],
            "largest": float(waves(torch.arange(max(self.lengths))[None]).abs().max()),
            "table": table.tolist(),
            "products": {str(start): self._products(waves, start) for start in self.starts},
        }

    def _products(self, waves: SinusoidalPositions, start: int) -> list[float]:
        """PE(start) PE(start + k) / |PE|^2 for k from 0 on."""
        pe: Tensor = waves(torch.arange(start, start + self.reach)[None])[0].double()
        return (pe @ pe[0] / (pe[0] @ pe[0])).tolist()

    def caption(self, data: Any) -> Words:
        curves = list(data["products"].values())
        apart = max(abs(a - b) for curve in curves for a, b in zip(curve, curves[0], strict=True))
        (short, _), (long, far) = data["raw"][0], data["raw"][-1]
        steps = dict(map(tuple, data["step"]))
        return Words(
            f"The last raw index is {far} at {long} tokens. One step of pos/(T-1) is {steps[short]:.3f} in a text "
            f"of {short} tokens and {steps[long]:.4f} in one of {long}: neighbours move together. No sinusoid is "
            f"beyond {data['largest']:.0f}, wherever it is. The curves of inner products from different places lie "
            f"on each other (at most {apart:.0e} apart): distance is all that counts.",
            f"{long} 个词元时最后的原始下标是 {far}。pos/(T-1) 的一步在 {short} 个词元的文本中是 "
            f"{steps[short]:.3f}，在 {long} 个中是 {steps[long]:.4f}：近邻的间隔变了。正弦值在任何位置都不超过 "
            f"{data['largest']:.0f}。从不同起点的内积曲线彼此重合（相差至多 {apart:.0e}）：只有距离起作用。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        length = Axis(say("tokens of the text", "文本的词元数"), base=2, show=lambda value: f"{value:.0f}")
        products = [
            Curve(say(f"from place {start}", f"起点 {start}"), list(enumerate(values)), look)
            for look, (start, values) in enumerate(data["products"].items())
        ]
        return [
            chart(
                say("Raw index of the last token", "最后一个词元的原始下标"),
                [Curve("", data["raw"], 0, True)],
                length,
                Axis("pos", low=0),
            ),
            chart(
                say("One step of pos/(T-1)", "pos/(T-1) 的一步"),
                [Curve("", data["step"], 1, True)],
                length,
                Axis(say("step", "步长"), low=0),
            ),
            field(
                say("Sinusoids: -1 faint, 1 strong", "正弦波：-1 浅，1 深"),
                data["table"],
                low=-1,
                high=1,
                across=say("feature: sines, then cosines", "特征：先正弦，后余弦"),
                down=say("position", "位置"),
                tall=4,
            ),
            chart(
                say("Inner product by distance", "内积随距离的变化"),
                products,
                Axis(say("tokens apart", "相隔的词元数")),
                Axis("PE(p)·PE(p+k) / |PE|²", high=1.0),
            ),
        ]


_SCALINGS: Final = {
    "none": None,
    "linear × 8": LinearScaling(factor=8),
    "YaRN × 8": YarnScaling(factor=8, original_max_position_embeddings=8192),
    "Llama 3.1 × 8": Llama3Scaling(
        factor=8, low_freq_factor=1, high_freq_factor=4, original_max_position_embeddings=8192
    ),
}


@dataclass(frozen=True)
class RotaryPositions(Figure):
    """Angles of rotary positions, and what they do to a score.

    Attributes:
        size: features of a head.
        theta: the base.
        starts: places of the query.
        reach: tokens between it and the key.
        shown: pairs whose angles are drawn.
    """

    name: ClassVar[str] = "rotary"
    title: ClassVar[Words] = Words("Rotary positions", "旋转位置")
    claim: ClassVar[Words] = Words(
        "Rotary positions put the relative angle into the score itself; scaling slows the long waves so that "
        "longer texts stay within angles that were trained.",
        "旋转位置把相对角度放进分数本身；缩放让长波变慢，使更长的文本仍落在训练过的角度内。",
    )
    size: int = 128
    theta: float = 500_000.0
    starts: tuple[int, ...] = (0, 1000, 8000)
    reach: int = 200
    shown: tuple[int, ...] = (0, 8, 16, 24)

    def data(self) -> Any:
        rotary = Rotary(RotarySpec(theta=self.theta), self.size)
        angles = torch.arange(65)[:, None] * rotary.frequencies()  # (places, pairs)
        return {
            "theta": self.theta,
            "angles": {str(pair): angles[:, pair].tolist() for pair in self.shown},
            "scores": {str(start): self._scores(rotary, start) for start in self.starts},
            "waves": {name: self._waves(scaling) for name, scaling in _SCALINGS.items()},
        }

    def _scores(self, rotary: Rotary, start: int) -> list[float]:
        """q k / |q|^2 of equal vectors of ones, k being 0, 1, ... tokens later."""
        places = torch.arange(start, start + self.reach)[None]
        turned = rotate(torch.ones(1, 1, self.reach, self.size).double(), rotary.angles(places, None, torch.float64))
        return (turned[0, 0] @ turned[0, 0, 0] / self.size).tolist()

    def _waves(self, scaling: Any) -> list[float]:
        """Tokens that each pair takes to turn once."""
        rotary = Rotary(RotarySpec(theta=self.theta, scaling=scaling), self.size)
        return (2 * torch.pi / rotary.frequencies()).tolist()

    def caption(self, data: Any) -> Words:
        plain, slow = data["waves"]["none"], data["waves"]["Llama 3.1 × 8"]
        curves = list(data["scores"].values())
        apart = max(abs(a - b) for curve in curves for a, b in zip(curve, curves[0], strict=True))
        return Words(
            f"A head of {2 * len(plain)} features, base {data['theta']:,.0f}. The first pair turns once in "
            f"{plain[0]:.1f} tokens, the last in {plain[-1]:,.0f}; Llama 3.1's scaling leaves the first at "
            f"{slow[0]:.1f} and takes the last to {slow[-1]:,.0f}. Scores of equal queries and keys fall with "
            f"distance and do not ask where the two stand (at most {apart:.0e} apart).",
            f"每头 {2 * len(plain)} 个特征，基数 {data['theta']:,.0f}。第一对每 {plain[0]:.1f} 个词元转一圈，最后一"
            f"对要 {plain[-1]:,.0f} 个；Llama 3.1 的缩放让第一对保持 {slow[0]:.1f}，最后一对变为 {slow[-1]:,.0f}。"
            f"相同的查询与键的分数随距离下降，与两者所在位置无关（相差至多 {apart:.0e}）。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        angles = [
            Curve(say(f"pair {pair}", f"第 {pair} 对"), list(enumerate(values)), look)
            for look, (pair, values) in enumerate(data["angles"].items())
        ]
        scores = [
            Curve(say(f"query at {start}", f"查询在 {start}"), list(enumerate(values)), look)
            for look, (start, values) in enumerate(data["scores"].items())
        ]
        waves = [
            Curve(
                say(name, "无缩放" if name == "none" else name.replace("linear", "线性")), list(enumerate(values)), look
            )
            for look, (name, values) in enumerate(data["waves"].items())
        ]
        apart = Axis(say("tokens apart", "相隔的词元数"))
        pair, once = Axis(say("pair of features", "特征对")), say("tokens to turn once", "转一圈的词元数")
        return [
            chart(
                say("Angle by position", "角度随位置的变化"),
                angles,
                Axis(say("position", "位置")),
                Axis(say("radians", "弧度"), low=0),
            ),
            chart(
                say("Score by distance", "分数随距离的变化"),
                scores,
                apart,
                Axis(say("share of its most", "占最大值的比例"), high=1),
            ),
            chart(say("Wavelengths by scaling", "各种缩放下的波长"), waves, pair, Axis(once, base=10)),
        ]
