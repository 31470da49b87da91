"""Where the norm stands, through training: the gradient of each layer at a few steps, and the loss, of small models.

The models of `placement` with this code's start, trained on bytes of Python code at one learning rate from the first
step on, without the warm-up that post wants (Xiong et al. 2020, arXiv 2002.04745, section 3).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Any, ClassVar, Final

from intaglio.atlas.charts import Axis, Curve, chart
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.figures.placement import placed
from intaglio.atlas.small_runs import BYTES, code_bytes, fit, fresh
from intaglio.atlas.svg import Canvas
from intaglio.specs.decoder import Placement

__all__ = ["NormTraining"]

_PLACEMENTS: Final[tuple[Placement, ...]] = ("post", "pre", "residual", "sandwich")
_STRETCH: Final = 24  # points of a curve of losses


@dataclass(frozen=True)
class NormTraining(Figure):
    """See above.

    Attributes:
        depths: layers of the models, from the fewest.
        at: steps before which gradients are taken, from the first.
        steps, batch, window, rate: of the training.
        width: of the residual stream.
        seeds: weights, each with windows of its own.
    """

    name: ClassVar[str] = "norm-training"
    title: ClassVar[Words] = Words("Where the norm stands, through training", "归一化的位置：训练之中")
    claim: ClassVar[Words] = Words(
        "What reaches the first layers decides what they learn. Where the path is bent, post-norm, a warm-up is said to"
        " be needed, the deeper the more; where it is straight, none.",
        "首层学到什么，取决于什么能到达它们。据说路径弯折的 post 需要预热，越深越需要；路径笔直则不需要。",
    )
    depths: tuple[int, ...] = (6, 24)
    at: tuple[int, ...] = (0, 5, 20, 80)
    steps: int = 320
    batch: int = 8
    window: int = 32
    rate: float = 3e-3
    width: int = 32
    seeds: int = 1

    def data(self) -> Any:
        runs = {str(depth): {kind: self._mean(kind, depth) for kind in _PLACEMENTS} for depth in self.depths}
        return {
            "at": [step for step in self.at if step < self.steps],
            "norms": {depth: {kind: norms for kind, (norms, _) in found.items()} for depth, found in runs.items()},
            "losses": {depth: {kind: losses for kind, (_, losses) in found.items()} for depth, found in runs.items()},
        }

    def _mean(self, kind: Placement, depth: int) -> tuple[dict[str, list[float]], list[float]]:
        """Over the seeds: gradients of the layers by step (geometric), and the loss of each step."""
        runs = [self._run(kind, depth, seed) for seed in range(self.seeds)]
        norms = {
            str(step): [
                exp(sum(map(log, one)) / len(runs)) for one in zip(*(run[0][step] for run in runs), strict=True)
            ]
            for step in runs[0][0]
        }
        return norms, [sum(losses) / len(runs) for losses in zip(*(run[1] for run in runs), strict=True)]

    def _run(self, kind: Placement, depth: int, seed: int) -> tuple[dict[int, list[float]], list[float]]:
        sizes = {"vocab_size": BYTES, "max_position_embeddings": self.window}
        model: Any = fresh(placed(kind, depth, self.width).updated(**sizes), seed)
        matrices = [block.feed_forward.down_proj.weight for block in model.layers]
        way: dict[str, Any] = {"steps": self.steps, "batch": self.batch, "window": self.window, "rate": self.rate}
        norms, losses = {}, []
        for step, loss in enumerate(fit(model, code_bytes(), **way, seed=seed)):
            losses.append(loss)
            if step in self.at:
                norms[step] = [max(float(matrix.grad.norm()), 1e-12) for matrix in matrices]
        return norms, losses

    def caption(self, data: Any) -> Words:
        least, most = map(str, (self.depths[0], self.depths[-1]))
        ends = {
            depth: {kind: _end(losses) for kind, losses in found.items()} for depth, found in data["losses"].items()
        }
        last = str(data["at"][-1])
        ratio = {kind: norms[last][0] / norms[last][-1] for kind, norms in data["norms"][most].items()}
        told = {
            lang: between.join(f"{kind} {ends[least][kind]:.2f}{then}{ends[most][kind]:.2f}" for kind in _PLACEMENTS)
            for lang, between, then in (("en", ", ", " and "), ("zh", "，", " 与 "))
        }
        first = {
            lang: between.join(f"{kind} {ratio[kind]:.2g}" for kind in _PLACEMENTS)
            for lang, between in (("en", ", "), ("zh", "，"))
        }
        return Words(
            f"Models {self.width} wide on {self.steps} steps of {self.batch} windows of {self.window} bytes, learning "
            f"rate {self.rate:g} from the first step. Loss at the end, with {least} and {most} layers: {told['en']} "
            f"nats a byte. Gradient of the first layer's last matrix over the last layer's, {most} layers, step "
            f"{last}: {first['en']}. Seeds: {self.seeds}; other rates and a warm-up give other curves.",
            f"宽 {self.width} 的模型，{self.steps} 步，每步 {self.batch} 段、每段 {self.window} 字节，第一步起学习率即"
            f"为 {self.rate:g}。最终损失（{least} 层与 {most} 层，nat/字节）：{told['zh']}。{most} 层、第 {last} 步时，"
            f"首层与末层最后一个矩阵的梯度之比：{first['zh']}。种子数：{self.seeds}；换学习率或加预热，曲线会不同。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        losses = [_losses(depth, found, say) for depth, found in data["losses"].items()]
        every = [
            norm for found in data["norms"].values() for at in found.values() for one in at.values() for norm in one
        ]
        size = Axis(say("norm of the gradient", "梯度范数"), base=10, low=min(every), high=max(every), show=_tick)
        return losses + [
            _gradients(depth, found, step, size, say) for step in data["at"] for depth, found in data["norms"].items()
        ]


def _end(losses: Sequence[float]) -> float:
    """The mean over the last tenth."""
    some = losses[-max(1, len(losses) // 10) :]
    return sum(some) / len(some)


def _losses(depth: str, found: Any, say: Say) -> Canvas:
    curves = [Curve(kind, _stretches(losses), look) for look, (kind, losses) in enumerate(found.items())]
    title = say(f"Training loss, {depth} layers", f"训练损失，{depth} 层")
    return chart(title, curves, Axis(say("step", "步")), Axis(say("nats a byte", "nat/字节")))


def _stretches(losses: Sequence[float]) -> list[tuple[float, float]]:
    size = max(1, -(-len(losses) // _STRETCH))
    parts = [(start, losses[start : start + size]) for start in range(0, len(losses), size)]
    return [(start + len(some) / 2, sum(some) / len(some)) for start, some in parts]


def _gradients(depth: str, found: Any, step: int, size: Axis, say: Say) -> Canvas:
    curves = [Curve(kind, [*enumerate(norms[str(step)], 1)], look) for look, (kind, norms) in enumerate(found.items())]
    title = say(f"Gradient by layer, {depth} layers, step {step}", f"各层的梯度，{depth} 层，第 {step} 步")
    return chart(title, curves, Axis(say("layer", "层")), size)


def _tick(value: float) -> str:
    return f"{value:g}" if value > 1e-3 else f"{value:.0e}"
