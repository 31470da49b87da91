"""Beyond the trained length: loss by position for each kind of positions, and for scalings of rotary ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from intaglio.atlas.charts import Axis, Curve, chart
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.small_runs import code_bytes, fit, fresh, held_out_bytes, losses_by_place, small_spec
from intaglio.atlas.svg import Canvas
from intaglio.models.decoder import Decoder
from intaglio.specs import DecoderSpec

__all__ = ["BeyondTraining"]

_KINDS: Final[dict[str, Any]] = {
    "learned": {"positions": {"kind": "learned"}},
    "sinusoidal": {"positions": {"kind": "sinusoidal"}},
    "rotary": {},
    "none": {"rope": None},
}
_CHINESE: Final = {"learned": "可学习", "sinusoidal": "正弦", "rotary": "旋转", "none": "无位置", "linear": "线性"}


@dataclass(frozen=True)
class BeyondTraining(Figure):
    """See above.

    Attributes:
        trained: length of the windows in training.
        read: length of those that are read then.
        width: of the models.
        steps, batch: of each run.
        windows: that are read.
    """

    name: ClassVar[str] = "beyond-training"
    title: ClassVar[Words] = Words("Beyond the trained length", "超出训练长度")
    claim: ClassVar[Words] = Words(
        "Learned positions end at the trained length and grow with it; rotary positions go on, and scaling makes "
        "them last.",
        "可学习的位置止于训练长度，并随之增长；旋转位置可以继续，缩放使其经得起更长的文本。",
    )
    trained: int = 64
    read: int = 256
    width: int = 48
    steps: int = 400
    batch: int = 16
    windows: int = 24

    def data(self) -> Any:
        models = {kind: self._model(kind) for kind in _KINDS}
        kinds = {kind: self._losses(model, self._reach(kind)) for kind, model in models.items()}
        scaled = {"rotary": kinds["rotary"]}
        for name, scaling in self._scalings().items():
            other = Decoder(self._spec("rotary", {"rope": {"scaling": scaling}}))
            other.load_state_dict(models["rotary"].state_dict())
            scaled[name] = self._losses(other, self.read)
        return {"trained": self.trained, "kinds": kinds, "scaled": scaled}

    def _model(self, kind: str) -> Decoder:
        model = fresh(self._spec(kind, _KINDS[kind]))
        for _ in fit(model, code_bytes(), steps=self.steps, batch=self.batch, window=self.trained):
            pass
        return model

    def _spec(self, kind: str, changes: dict[str, Any]) -> DecoderSpec:
        feed_forward = {"intermediate_size": 2 * self.width, "activation": "silu", "gated": True}
        return small_spec(self.width, self._reach(kind), feed_forward, **changes)

    def _reach(self, kind: str) -> int:
        return self.trained if kind == "learned" else self.read

    def _scalings(self) -> dict[str, dict[str, Any]]:
        factor, original = self.read / self.trained, {"original_max_position_embeddings": self.trained}
        return {
            "linear": {"kind": "linear", "factor": factor},
            "dynamic": {"kind": "dynamic", "factor": factor, **original},
            "YaRN": {"kind": "yarn", "factor": factor, **original},
        }

    def _losses(self, model: Decoder, length: int) -> list[list[float]]:
        """(place, loss) of stretches of a quarter of the trained length, by their middles."""
        losses = losses_by_place(model, held_out_bytes(), length, self.windows)
        step = self.trained // 4
        return [[step * (n + 0.5), float(part.mean())] for n, part in enumerate(losses.split(step))]

    def caption(self, data: Any) -> Words:
        found, length = {**data["kinds"], **data["scaled"]}, data["trained"]
        within = f"{_perplexity(found['rotary'], 0, length):.0f}"
        far = {
            name: f"{_perplexity(losses, length, self.read):.0f}" for name, losses in found.items() if name != "learned"
        }
        return Words(
            f"Perplexity of held-out bytes for small models trained on windows of {length}, by the place in the "
            f"window. The learned table ends there. Beyond it sinusoids have {far['sinusoidal']} and plain rotary "
            f"positions {far['rotary']}, after {within} within: they go on, but into angles never seen. With the "
            f"same weights and no further training YaRN has {far['YaRN']} and dynamic NTK {far['dynamic']}; no "
            f"positions at all, {far['none']}. One seed.",
            f"在长 {length} 的窗口上训练的小模型对留出字节的困惑度，按窗口内位置。可学习的位置表到此为止。超出之"
            f"后，正弦为 {far['sinusoidal']}，普通旋转位置为 {far['rotary']}，而旋转在长度之内是 {within}：可以继"
            f"续，但角度从未见过。同样的权重、不再训练，YaRN 为 {far['YaRN']}，dynamic NTK 为 {far['dynamic']}；完"
            f"全没有位置为 {far['none']}。单个种子。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        place = Axis(say("place in the window", "窗口内位置"), low=0)
        perplexity = Axis(say("perplexity", "困惑度"), low=0)
        titles = {"kinds": say("Kinds of positions", "位置的种类"), "scaled": say("Rotary, scaled", "缩放的旋转位置")}
        panels = []
        for key, title in titles.items():
            curves = [
                Curve(say(name, _CHINESE.get(name, name)), [(x, math.exp(loss)) for x, loss in found], look, True)
                for look, (name, found) in enumerate(data[key].items())
            ]
            panels.append(chart(title, curves, place, perplexity))
        return panels


def _perplexity(losses: Sequence[Sequence[float]], low: float, high: float) -> float:
    """Of the places between."""
    inside = [loss for place, loss in losses if low < place < high]
    return math.exp(sum(inside) / len(inside))
