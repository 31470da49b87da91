"""A mixture of experts at work: router scores, what each expert receives, and the load with and without the loss.

Two small models of bytes are trained here on the Python standard library, one with the load-balancing loss (Fedus et
al. 2021, equation 4), and read a held-out file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.atlas.charts import Axis, Curve, chart, columns, field
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.small_runs import code_bytes, fit, fresh, held_out_bytes, small_spec
from intaglio.atlas.svg import Canvas
from intaglio.models.decoder import Decoder
from intaglio.parts.moe import MixtureOfExperts, Router, load_balancing_loss

__all__ = ["Experts", "kind_of"]

_KINDS: Final = {
    "letters": Words("letters", "字母"),
    "spaces": Words("spaces", "空格"),
    "lines": Words("line ends", "换行"),
    "signs": Words("digits and signs", "数字与符号"),
}


@dataclass(frozen=True)
class Experts(Figure):
    """See above.

    Attributes:
        experts, chosen: of each layer, and for each token.
        width: of the model.
        steps: of a run, each over `batch` windows of `window` bytes.
        coefficient: of the auxiliary loss.
        shown: tokens whose scores are drawn.
    """

    name: ClassVar[str] = "experts"
    title: ClassVar[Words] = Words("A mixture of experts", "混合专家")
    claim: ClassVar[Words] = Words(
        "The router scores by a linear map and takes the top k; left alone it favours some experts, and an "
        "auxiliary loss evens the load.",
        "路由器用线性映射打分，取前 k 个；放任不管它会偏爱某些专家，辅助损失使负载均匀。",
    )
    experts: int = 8
    chosen: int = 2
    width: int = 32
    steps: int = 200
    batch: int = 8
    window: int = 64
    coefficient: float = 0.05
    shown: int = 28

    def data(self) -> Any:
        held = held_out_bytes()[: 16 * self.window]
        runs = {str(coefficient): self._run(held, coefficient) for coefficient in (0.0, self.coefficient)}
        return {
            "sizes": self.plain(),
            "runs": runs,
            "text": bytes(held[: self.shown].tolist()).decode(),
            "read": len(held),
        }

    def _run(self, held: Tensor, coefficient: float) -> dict[str, Any]:
        model, losses = self._trained(coefficient)
        ids = held.view(-1, self.window)
        logits = model(ids)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        router = _routers(model)[-1]
        assert router.scores is not None
        assert router.chosen is not None
        loads = torch.zeros(self.experts, len(_KINDS))
        for byte, experts in zip(held.tolist(), router.chosen.tolist(), strict=True):
            loads[experts, list(_KINDS).index(kind_of(byte))] += 1
        return {
            "loss": loss.item(),
            "balance": losses,
            "loads": (loads / loads.sum()).tolist(),
            "scores": router.scores[: self.shown].detach().tolist(),
            "chosen": router.chosen[: self.shown].tolist(),
        }

    def _trained(self, coefficient: float) -> tuple[Decoder, list[float]]:
        """The model, and its auxiliary loss every ten steps: 1 where experts are used evenly."""
        expert = {"intermediate_size": 2 * self.width, "activation": "silu", "gated": True}
        mixture = {"kind": "moe", "num_experts": self.experts, "num_experts_per_tok": self.chosen, "expert": expert}
        model = fresh(small_spec(self.width, self.window, mixture))
        balance: list[float] = []

        def weighted() -> Tensor:
            aux = torch.stack([load_balancing_loss(router) for router in _routers(model)]).mean()
            balance.append(float(aux.detach()))
            return coefficient * aux

        for _ in fit(model, code_bytes(), steps=self.steps, batch=self.batch, window=self.window, extra=weighted):
            pass
        return model, balance[::10]

    def caption(self, data: Any) -> Words:
        sizes = data["sizes"]
        runs = {name: [sum(kinds) for kinds in run["loads"]] for name, run in data["runs"].items()}
        spread = [f"{min(loads):.0%} to {max(loads):.0%}" for loads in runs.values()]
        range_ = [f"{min(loads):.0%} 到 {max(loads):.0%}" for loads in runs.values()]
        losses = [f"{run['loss']:.2f}" for run in data["runs"].values()]
        return Words(
            f"Two models of bytes with {sizes['experts']} experts, {sizes['chosen']} for each token, trained for "
            f"{sizes['steps']} steps on the Python standard library and reading {data['read']} held-out bytes; "
            f"shown is the last layer. Without the loss an expert gets {spread[0]} of the choices, with it "
            f"{spread[1]}; the held-out loss is {losses[0]} and {losses[1]} nats a byte. So short a training says "
            "what a router does, not what it is worth.",
            f"两个字节模型，{sizes['experts']} 个专家，每词元选 {sizes['chosen']} 个，在 Python 标准库上训练 "
            f"{sizes['steps']} 步，再读 {data['read']} 个留出字节；图为最后一层。没有辅助损失时每个专家得到 "
            f"{range_[0]} 的选择，有则为 {range_[1]}；留出损失分别是 {losses[0]} 与 {losses[1]} nat/字节。如此短的"
            "训练只说明路由器在做什么，不说明其价值。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        names = [say("without the loss", "无辅助损失"), say("with the loss", "有辅助损失")]
        balance = [
            Curve(name, [(10 * place, value) for place, value in enumerate(run["balance"])], look)
            for look, (name, run) in enumerate(zip(names, data["runs"].values(), strict=True))
        ]
        loads = [
            columns(
                say(f"Load of each expert, {name}", f"各专家的负载，{name}"),
                _by_kind(run["loads"], say),
                say("% of choices", "选择占比 %"),
                lambda value: f"{value:.0f}",
            )
            for name, run in zip(names, data["runs"].values(), strict=True)
        ]
        shown = list(data["runs"].values())[-1]
        return [
            _scores(shown, data["text"], say),
            *loads,
            chart(
                say("Auxiliary loss while training", "训练中的辅助损失"),
                balance,
                Axis(say("step", "步")),
                Axis(say("1: all experts used evenly", "1：专家使用均匀")),
            ),
        ]


def kind_of(byte: int) -> str:
    """What an expert may come to care for: letters, spaces, line ends, or digits and signs."""
    letter = chr(byte)
    if letter.isalpha():
        return "letters"
    return {" ": "spaces", "\n": "lines"}.get(letter, "signs")


def _routers(model: Decoder) -> list[Router]:
    return [module.router for module in model.modules() if isinstance(module, MixtureOfExperts)]


def _by_kind(loads: Sequence[Sequence[float]], say: Say) -> dict[str, dict[str, float]]:
    names = [say(*words) for words in _KINDS.values()]
    return {
        str(expert): dict(zip(names, (100 * share for share in shares), strict=True))
        for expert, shares in enumerate(loads)
    }


def _scores(run: Any, text: str, say: Say) -> Canvas:
    """Experts from above, bytes from left to right; a frame around each choice."""
    scores = torch.tensor(run["scores"]).T
    names = [{" ": "␣", "\n": "↵"}.get(letter, letter) for letter in text]
    canvas = field(
        say("Router scores of the beginning, and the choice", "开头各字节的路由分数与选择"),
        scores.tolist(),
        low=0,
        names=names,
        rows=[str(expert) for expert in range(len(scores))],
        down=say("expert", "专家"),
        width=820,
        tall=18,
    )
    return _framed(canvas, run["chosen"], scores, len(text))


def _framed(canvas: Canvas, chosen: Sequence[Sequence[int]], scores: Tensor, count: int) -> Canvas:
    """Frames on the field, whose frame tells where it is."""
    frame = next(part for part in reversed(canvas.parts) if part.startswith('<rect class="axis"'))
    x, y, width, height = (float(frame.split(f' {name}="')[1].split('"')[0]) for name in ("x", "y", "width", "height"))
    across, down = width / count, height / len(scores)
    for place, experts in enumerate(chosen):
        for expert in experts:
            for inset, look in ((1.0, "arrow"), (2.4, "halo")):  # one of the two is seen on any shade
                left, top = x + place * across + inset, y + expert * down + inset
                canvas.rect(left, top, across - 2 * inset, down - 2 * inset, look)
    return canvas
