"""How far back a gradient reaches in recurrent networks: the history's own measurement, at a small size."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from intaglio.atlas.charts import Axis, Curve, chart
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.gradients import Gradients
from intaglio.atlas.svg import Canvas

__all__ = ["GradientReach"]


@dataclass(frozen=True)
class GradientReach(Figure):
    """See above.

    Attributes:
        lengths: of the sequences, from the shortest.
        hidden_size: of all models.
        sequences: of each length.
        seeds: weights.
    """

    name: ClassVar[str] = "gradient-reach"
    title: ClassVar[Words] = Words("Vanishing and exploding gradients", "梯度消失与爆炸")
    claim: ClassVar[Words] = Words(
        "Products of Jacobians vanish with factors below 1 and explode above 1; the LSTM's straight road and open "
        "gates keep them.",
        "雅可比矩阵连乘，因子小于 1 则消失，大于 1 则爆炸；LSTM 的直路与打开的门保住梯度。",
    )
    lengths: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    hidden_size: int = 32
    sequences: int = 4
    seeds: int = 2

    def data(self) -> Any:
        measured = Gradients(self.lengths, self.hidden_size, self.sequences, self.seeds)
        found: dict[str, list[Any]] = {}
        (parts,) = measured.stages()
        for name, part in parts.items():
            found.setdefault(name.rpartition(", seed")[0], []).append(part(Path(), {}))
        means = {curve: np.log10(norms).mean(axis=(0, 2)).tolist() for curve, norms in found.items()}
        return {"lengths": list(self.lengths), "logs": means}

    def caption(self, data: Any) -> Words:
        change = {curve: logs[-1] - logs[0] for curve, logs in data["logs"].items()}
        short, long = data["lengths"][0], data["lengths"][-1]
        numbers = "; ".join(f"{curve} {by:+.1f}" for curve, by in change.items())
        told = "；".join(f"{_in_chinese(curve)} {by:+.1f}" for curve, by in change.items())
        return Words(
            "|d loss at the last step / d embedding of the first token| of untrained models. Powers of ten from "
            f"{short} to {long} tokens: {numbers}. The scale of an RNN is every singular value of its recurrent "
            "matrix; gates are open where their biases begin so. With intervals and verdicts: `intaglio ladder "
            "history`.",
            f"未训练模型的 |最后一步损失对首词元嵌入的梯度|。从 {short} 到 {long} 个词元变化的数量级：{told}。RNN "
            "的 scale 是其循环矩阵的全部奇异值；“门打开”指偏置如此开始。带区间与判定的版本：`intaglio ladder "
            "history`。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        logs = {name: list(zip(data["lengths"], found, strict=True)) for name, found in data["logs"].items()}
        kinds = [
            {name: points for name, points in logs.items() if name.startswith("RNN") is plain}
            for plain in (True, False)
        ]
        x = Axis(say("tokens between", "相隔的词元数"), base=2, show=lambda value: f"{value:.0f}")
        y = Axis(say("log10 of the gradient", "梯度的 log10"))
        titles = ("RNN", say("LSTM and GRU", "LSTM 与 GRU"))
        return [chart(title, _curves(points, say), x, y) for title, points in zip(titles, kinds, strict=True)]


def _curves(points: dict[str, list[tuple[int, float]]], say: Say) -> list[Curve]:
    return [Curve(say(name, _in_chinese(name)), found, look, True) for look, (name, found) in enumerate(points.items())]


def _in_chinese(curve: str) -> str:
    return curve.replace(", gates open", "，门打开").replace(", scale", "，scale")
