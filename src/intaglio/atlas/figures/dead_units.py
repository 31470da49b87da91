"""Dead units: hidden features of a trained ReLU feed-forward that no byte of a text wakes, by learning rate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from intaglio.atlas.charts import Axis, Curve, chart
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.small_runs import code_bytes, fit, fresh, held_out_bytes, small_spec
from intaglio.atlas.svg import Canvas

__all__ = ["DeadUnits", "units_awake"]


@dataclass(frozen=True)
class DeadUnits(Figure):
    """See above.

    Attributes:
        width: of the models; their feed-forwards are four times as wide.
        steps, batch, window: of each run.
        rates: of learning.
    """

    name: ClassVar[str] = "dead-units"
    title: ClassVar[Words] = Words("Dead units", "死神经元")
    claim: ClassVar[Words] = Words(
        "Below 0 ReLU has no gradient: a unit pushed there by a large step may never come back.",
        "ReLU 在 0 以下没有梯度：被一大步推到那里的单元可能再也回不来。",
    )
    width: int = 32
    steps: int = 200
    batch: int = 16
    window: int = 48
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)

    def data(self) -> Any:
        return {name: [self._run(name, rate) for rate in self.rates] for name in ("relu", "gelu")}

    def _run(self, activation: str, rate: float) -> dict[str, float]:
        """Shares of units that are asleep on all of the text, and the last loss."""
        feed_forward = {"intermediate_size": 4 * self.width, "activation": activation, "bias": True}
        model = fresh(small_spec(self.width, self.window, feed_forward))
        losses = list(fit(model, code_bytes(), steps=self.steps, batch=self.batch, window=self.window, rate=rate))
        awake = units_awake(model, held_out_bytes()[: 64 * self.window].view(-1, self.window))
        return {"rate": rate, "asleep": 1 - float(awake.float().mean()), "loss": sum(losses[-10:]) / 10}

    def caption(self, data: Any) -> Words:
        worst = max(data["relu"], key=lambda run: run["asleep"])
        best = min(data["relu"], key=lambda run: run["loss"])
        smooth = max(run["asleep"] for run in data["gelu"])
        return Words(
            f"Models of bytes after {self.steps} steps, reading {64 * self.window} held-out bytes. A unit counts "
            f"as asleep that is at or below 0 before the activation for every byte. With ReLU {best['asleep']:.0%} "
            f"are at the best rate ({best['rate']:g}) and {worst['asleep']:.0%} at {worst['rate']:g}; with GELU "
            f"{smooth:.0%} at most, and those still have a gradient. One seed.",
            f"字节模型训练 {self.steps} 步后读 {64 * self.window} 个留出字节。若对每个字节激活前都不大于 0，则算作"
            f"沉睡。ReLU 在最佳学习率（{best['rate']:g}）时为 {best['asleep']:.0%}，在 {worst['rate']:g} 时为 "
            f"{worst['asleep']:.0%}；GELU 至多 {smooth:.0%}，且仍有梯度。单个种子。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        names = {"relu": "ReLU", "gelu": "GELU"}
        rates = Axis(
            say("learning rate", "学习率"),
            base=10,
            ticks=[run["rate"] for run in data["relu"]],
            show=lambda r: f"{r:g}",
        )
        panels = {
            "asleep": (say("Units asleep on all of a text", "对整段文本沉睡的单元"), Axis("%", low=0), 100),
            "loss": (say("Training loss at the end", "最后的训练损失"), Axis(say("nats a byte", "nat/字节"), low=0), 1),
        }
        return [
            chart(
                title,
                [
                    Curve(name, [(run["rate"], times * run[key]) for run in data[kind]], look, True)
                    for look, (kind, name) in enumerate(names.items())
                ],
                rates,
                axis,
            )
            for key, (title, axis, times) in panels.items()
        ]


@torch.no_grad()
def units_awake(model: Any, ids: Tensor) -> Tensor:
    """Of each unit of all layers, whether any token of (B, T) brings it above 0."""
    found: list[Tensor] = []
    for block in model.layers:
        block.feed_forward.up_proj.register_forward_hook(
            lambda _, __, out: found.append((out > 0).flatten(0, 1).any(0))
        )
    model(ids)
    return torch.cat(found)
