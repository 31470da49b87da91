"""NF4: its sixteen levels over real weights, and what is lost against other roundings to few bits.

The weights are a pulled model's where it is here, else a small model's that was just initialised; the caption says.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from safetensors.torch import load_file
from torch import Tensor

from intaglio.atlas.charts import Axis, Curve, chart, columns, short
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.real_model import fingerprint, folder_of
from intaglio.atlas.svg import Canvas
from intaglio.engine.quantized import quantize
from intaglio.parts.nf4 import CODE, dequantize, quantize_nf4

__all__ = ["FourBits", "relative_error"]

_BINS: Final = 96
_WAYS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "int8": lambda weight: quantize(weight, 8).weight(),
    "NF4": lambda weight: dequantize(quantize_nf4(weight, double_quant=False), torch.float32),
    "NF4, 8-bit scales": lambda weight: dequantize(quantize_nf4(weight), torch.float32),
    "int4, even": lambda weight: _even(weight, 64),
    "int4, offset": lambda weight: quantize(weight, 4).weight(),
}


@dataclass(frozen=True)
class FourBits(Figure):
    """See above.

    Attributes:
        model: whose matrices are rounded; one whose file was never rounded to few bits, as a GGUF's weights were.
        layers: of it that are looked at.
        blocksize: weights that share a scale.
    """

    name: ClassVar[str] = "nf4"
    title: ClassVar[Words] = Words("Four bits: NF4's levels over real weights", "四位：真实权重上的 NF4 级别")
    claim: ClassVar[Words] = Words(
        "QLoRA keeps frozen weights in 4 bits whose levels are a normal distribution's quantiles: fine where "
        "weights are many.",
        "QLoRA 用 4 位保存冻结的权重，级别取正态分布的分位数：权重密集处更细。",
    )
    model: str = "all-minilm-l6-v2"
    layers: tuple[int, ...] = (0, 5)
    blocksize: int = 64

    def inputs(self) -> str:
        return fingerprint(self.model)

    def data(self) -> Any:
        weights, said = self._weights()
        blocks = torch.cat([weight.reshape(-1, self.blocksize) for weight in weights])
        scaled = blocks / blocks.abs().amax(dim=1, keepdim=True)
        return {
            "model": said,
            "weights": blocks.numel(),
            "levels": CODE.tolist(),
            "histogram": (torch.histc(scaled, _BINS, -1, 1) / scaled.numel()).tolist(),
            "shares": _shares(scaled).tolist(),
            "errors": {name: relative_error(weights, way) for name, way in _WAYS.items()},
        }

    def _weights(self) -> tuple[list[Tensor], str]:
        """Matrices, and whose they are."""
        if folder := folder_of(self.model):
            tensors = load_file(folder / "model.safetensors")
            wanted = [f".layer.{number}." for number in self.layers]
            chosen = [name for name in sorted(tensors) if any(one in name for one in wanted)]
            return [tensors[name].float() for name in chosen if tensors[name].ndim == 2], self.model
        dice = torch.Generator().manual_seed(0)
        return [torch.randn(384, 384, generator=dice) * 0.02 for _ in range(6)], "random"

    def caption(self, data: Any) -> Words:
        errors, millions = data["errors"], f"{data['weights'] / 1e6:.1f}"
        real = data["model"] != "random"
        who = f"of {data['model']}" if real else f"drawn from a normal distribution (pull {self.model} for real ones)"
        whose = f"{data['model']} 的" if real else f"取自正态分布的（拉取 {self.model} 可用真实权重）"
        shares = f"{min(data['shares']):.1%}", f"{max(data['shares']):.1%}"
        numbers = f"NF4 {errors['NF4']:.1%}", f"{errors['int4, even']:.1%}", f"{errors['int4, offset']:.1%}"
        return Words(
            f"{millions} million weights {who}, each divided by the largest of its {self.blocksize}. A level "
            f"stands for {shares[0]} to {shares[1]} of them. Error is the root of the squared error over that of "
            f"the weights: {numbers[0]}, with even levels at the same scales {numbers[1]}. The engine's int4 "
            f"({numbers[2]}) has a scale and an offset for each 32 weights: it takes a bit a weight for them where "
            "NF4 takes half of one, or an eighth with 8-bit scales.",
            f"{whose} {millions} 百万个权重，各除以所在 {self.blocksize} 个中的最大者。每个级别代表其中 "
            f"{shares[0]} 到 {shares[1]}。误差为均方根误差与权重均方根之比：{numbers[0]}，同样缩放下均匀级别 "
            f"{numbers[1]}。引擎的 int4（{numbers[2]}）每 32 个权重有一个缩放和一个偏移：每权重为此多占一位，NF4 只"
            "占半位，8 位缩放时约八分之一位。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        histogram = [(-1 + 2 * (i + 0.5) / _BINS, 100 * share) for i, share in enumerate(data["histogram"])]
        across = Axis(say("weight over the largest of its block", "权重与块内最大值之比"), low=-1, high=1)
        weights = chart(
            say("Weights, and NF4's levels (strokes below)", "权重分布与 NF4 级别（下方竖线）"),
            [Curve("", histogram, 1)],
            across,
            Axis(say("% of weights in a bin", "各区间权重占比 %"), low=0),
        )
        _levels(weights, data["levels"])
        shares = [(level, 100 * share) for level, share in zip(data["levels"], data["shares"], strict=True)]
        used = chart(
            say("How often each level is used", "每个级别的使用率"),
            [Curve("", shares, 0, True)],
            across,
            Axis("%", low=0),
        )
        named = {say(name, _CHINESE.get(name, name)): {"": 100 * error} for name, error in data["errors"].items()}
        lost = columns(say("Relative error, %", "相对误差 %"), named, "%", short, width=460)
        return [weights, used, lost]


_CHINESE: Final = {"NF4, 8-bit scales": "NF4，8 位缩放", "int4, offset": "int4，带偏移", "int4, even": "int4，均匀"}


def relative_error(weights: Sequence[Tensor], way: Callable[[Tensor], Tensor]) -> float:
    """sqrt(sum (w - way(w))^2 / sum w^2) over all matrices."""
    lost = sum(float((weight - way(weight)).double().square().sum()) for weight in weights)
    return float((lost / sum(float(weight.double().square().sum()) for weight in weights)) ** 0.5)


def _even(weight: Tensor, blocksize: int) -> Tensor:
    """Fifteen even steps about 0 at NF4's scales: each block's largest magnitude is the last one."""
    blocks = weight.reshape(-1, blocksize)
    step = blocks.abs().amax(dim=1, keepdim=True) / 7
    return ((blocks / step).round().clamp(-7, 7) * step).view_as(weight)


def _shares(scaled: Tensor) -> Tensor:
    """How many of the weights are nearest to each level."""
    nearest = torch.bucketize(scaled.reshape(-1), (CODE[:-1] + CODE[1:]) / 2)
    return torch.bincount(nearest, minlength=len(CODE)) / scaled.numel()


def _levels(canvas: Canvas, levels: Sequence[float]) -> None:
    """Strokes under the plot, where its x axis has them."""
    plot = next(part for part in canvas.parts if part.startswith("<polyline"))
    points = [tuple(map(float, one.split(","))) for one in plot.split('points="')[1].split('"')[0].split()]
    (x0, _), (x1, _) = points[0], points[-1]
    first, last = -1 + 1 / _BINS, 1 - 1 / _BINS
    bottom = max(y for _, y in points)
    for level in levels:
        x = x0 + (level - first) / (last - first) * (x1 - x0)
        canvas.line(x, bottom - 14, x, bottom, "m0")
