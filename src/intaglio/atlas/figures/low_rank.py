"""LoRA: how low the rank of an update is, and what is lost by forcing it, in a small model tuned from code to "
"prose."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from intaglio.adapters.attach import attach, train_only, trainable_share
from intaglio.atlas.charts import Axis, Curve, chart
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.small_runs import code_bytes, fit, fresh, losses_by_place, prose_bytes, small_spec
from intaglio.atlas.svg import Canvas
from intaglio.models.decoder import Decoder
from intaglio.specs.adapter import LoRASpec

__all__ = ["LowRank", "kept_by_rank"]


@dataclass(frozen=True)
class LowRank(Figure):
    """See above.

    Attributes:
        width: of the model.
        base_steps, steps: of its training on code, and of each tuning on prose.
        batch, window: of all runs.
        ranks: of LoRA.
        rates: of learning, for all weights and for an adapter.
    """

    name: ClassVar[str] = "lora"
    title: ClassVar[Words] = Words("LoRA: the rank of an update", "LoRA：更新的秩")
    claim: ClassVar[Words] = Words(
        "LoRA supposes that what tuning adds to a matrix is near a low rank, so that a product of two narrow "
        "matrices can stand for it.",
        "LoRA 假设微调加到矩阵上的更新接近低秩，两个窄矩阵的乘积即可代表它。",
    )
    width: int = 48
    base_steps: int = 300
    steps: int = 100
    batch: int = 16
    window: int = 48
    ranks: tuple[int, ...] = (1, 2, 4, 8, 16)
    rates: tuple[float, float] = (1e-3, 1e-2)

    def data(self) -> Any:
        prose = prose_bytes()
        text, held = prose[: len(prose) * 3 // 4], prose[len(prose) * 3 // 4 :]
        base = self._trained(self._fresh(), code_bytes(), self.base_steps, 3e-3)
        whole = self._trained(self._copy(base), text, self.steps, self.rates[0])
        losses, shares = {}, {}
        for rank in self.ranks:
            tuned = self._copy(base)
            attach(tuned, LoRASpec(r=rank, lora_alpha=rank), "tuned")
            train_only(tuned, "tuned")
            taught, everything = trainable_share(tuned)
            shares[str(rank)] = taught / everything
            losses[str(rank)] = self._loss(self._trained(tuned, text, self.steps, self.rates[1]), held)
        return {
            "kept": {"update": self._kept(base, whole), "random": kept_by_rank(torch.randn(96, self.width))},
            "losses": losses,
            "shares": shares,
            "base": self._loss(base, held),
            "whole": self._loss(whole, held),
        }

    def _fresh(self) -> Decoder:
        feed_forward = {"intermediate_size": 2 * self.width, "activation": "silu", "gated": True}
        return fresh(small_spec(self.width, self.window, feed_forward))

    def _copy(self, base: Decoder) -> Decoder:
        copied = self._fresh()
        copied.load_state_dict(base.state_dict())
        return copied

    def _trained(self, model: Decoder, text: Tensor, steps: int, rate: float) -> Decoder:
        for _ in fit(model, text, steps=steps, batch=self.batch, window=self.window, rate=rate):
            pass
        return model

    def _loss(self, model: Decoder, held: Tensor) -> float:
        return float(losses_by_place(model, held, self.window, 64).mean())

    def _kept(self, base: Decoder, whole: Decoder) -> list[float]:
        """Of the updates of all layers' matrices, on average."""
        before, after = base.layers.state_dict(), whole.layers.state_dict()
        updates = [after[name] - before[name] for name, matrix in before.items() if matrix.ndim == 2]
        return torch.tensor([kept_by_rank(one)[: self.width] for one in updates]).mean(dim=0).tolist()

    def caption(self, data: Any) -> Words:
        kept, random = data["kept"]["update"], data["kept"]["random"]
        last = str(self.ranks[-1])
        return Words(
            f"A model of bytes {self.width} wide, trained on code and tuned on prose. The best rank of 4 holds "
            f"{kept[3]:.0%} of the squared norm of what tuning all weights added, and {random[3]:.0%} of a random "
            f"matrix. Held-out loss in nats a byte: {data['base']:.2f} before, {data['whole']:.2f} with all "
            f"weights tuned, {data['losses']['1']:.2f} with LoRA of rank 1, which trains {data['shares']['1']:.1%} "
            f"of the numbers, {data['losses'][last]:.2f} of rank {last} ({data['shares'][last]:.0%}). One seed; "
            f"each way with one learning rate ({self.rates[0]:g} and {self.rates[1]:g}).",
            f"宽 {self.width} 的字节模型，先在代码上训练，再在散文上微调。秩 4 的最佳近似保留全量微调之更新的平方范"
            f"数的 {kept[3]:.0%}，随机矩阵只有 {random[3]:.0%}。留出损失（nat/字节）：微调前 {data['base']:.2f}，全"
            f"量微调 {data['whole']:.2f}，秩 1 的 LoRA {data['losses']['1']:.2f}（训练 {data['shares']['1']:.1%} 的"
            f"数），秩 {last} 为 {data['losses'][last]:.2f}（{data['shares'][last]:.0%}）。单个种子；各用一个学习率"
            f"（{self.rates[0]:g} 与 {self.rates[1]:g}）。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        names = {"update": say("the update", "微调的更新"), "random": say("a random matrix", "随机矩阵")}
        kept = [
            Curve(name, [(rank, 100 * share) for rank, share in enumerate(data["kept"][key], 1)], look)
            for look, (key, name) in enumerate(names.items())
        ]
        ranks = sorted(map(int, data["losses"]))
        flat = {"base": say("before", "微调前"), "whole": say("all weights", "全部权重")}
        losses = [
            Curve("LoRA", [(rank, data["losses"][str(rank)]) for rank in ranks], 0, True),
            *(
                Curve(name, [(ranks[0], data[key]), (ranks[-1], data[key])], look, True)
                for look, (key, name) in enumerate(flat.items(), 1)
            ),
        ]
        return [
            chart(
                say("Squared norm that the best rank r keeps", "最佳秩 r 近似保留的平方范数"),
                kept,
                Axis("r", low=1),
                Axis("%", low=0, high=100),
            ),
            chart(
                say("Held-out loss after tuning", "微调后的留出损失"),
                losses,
                Axis("r", base=2, ticks=ranks, show=lambda value: f"{value:.0f}"),
                Axis(say("nats a byte", "nat/字节")),
            ),
        ]


def kept_by_rank(matrix: Tensor) -> list[float]:
    """Of the squared norm of a matrix, what its best approximation of rank 1, 2, ... keeps (Eckart and Young "
    "1936)."""
    squares = torch.linalg.svdvals(matrix.double()).square()
    return (squares.cumsum(dim=0) / squares.sum()).tolist()
