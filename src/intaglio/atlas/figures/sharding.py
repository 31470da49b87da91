"""Memory of a rank by component and ZeRO stage, from the planner."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from intaglio.atlas.charts import columns, short
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.svg import Canvas
from intaglio.lineage import preset
from intaglio.planning.report import plan
from intaglio.specs import DecoderSpec

__all__ = ["Sharding"]

_KINDS: Final = {
    "weights": Words("weights", "权重"),
    "gradients": Words("gradients", "梯度"),
    "optimizer": Words("master weights and moments", "主权重与动量"),
    "activations": Words("activations", "激活"),
    "passing": Words("loss, buffers, on the way", "损失、缓冲与途中"),
}


@dataclass(frozen=True)
class Sharding(Figure):
    """See above.

    Attributes:
        model: a preset.
        ranks: that share.
        sequence: tokens of a row.
    """

    name: ClassVar[str] = "zero"
    title: ClassVar[Words] = Words("ZeRO: what each rank holds", "ZeRO：每个进程持有什么")
    claim: ClassVar[Words] = Words(
        "ZeRO 1, 2 and 3 share out optimizer states, gradients, then parameters; activations stay with their rank.",
        "ZeRO 1、2、3 依次分摊优化器状态、梯度、参数；激活留在各自的进程。",
    )
    model: str = "llama3-8b"
    ranks: int = 8
    sequence: int = 4096

    def data(self) -> Any:
        spec = preset(self.model).spec
        assert isinstance(spec, DecoderSpec)
        stages = {}
        for zero in range(4):
            found = plan(spec, {"dp": self.ranks, "zero": zero}, sequence=self.sequence).plan.worst
            stages[str(zero)] = {"moment": found.peak.name, "components": dict(found.peak.parts)}
        return {"model": self.model, "sequence": self.sequence, "ranks": self.ranks, "stages": stages}

    def caption(self, data: Any) -> Words:
        peaks = {zero: sum(stage["components"].values()) for zero, stage in data["stages"].items()}
        numbers = f"{_gib(peaks['0'])} → {_gib(peaks['1'])} → {_gib(peaks['2'])} → {_gib(peaks['3'])}"
        moments = ", ".join(dict.fromkeys(stage["moment"] for stage in data["stages"].values()))
        return Words(
            f"{data['model']}, {data['ranks']} ranks, a row of {data['sequence']:,} tokens each in bf16 with AdamW "
            f"in fp32 and no checkpointing, at the moment that needs most ({moments}): {numbers}. As this code's "
            "engine runs them, stages 1 and 2 keep the same at that moment.",
            f"{data['model']}，{data['ranks']} 个进程，各一行 {data['sequence']:,} 词元，bf16 计算、fp32 的 AdamW、"
            f"不重算，取最占内存的时刻（{moments}）：{numbers}。在本代码的引擎中，1 与 2 两级在这一时刻占用相同。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        names = {key: say(*words) for key, words in _KINDS.items()}
        stacks = {}
        for zero, stage in data["stages"].items():
            parts = dict.fromkeys(names.values(), 0.0)
            for component, size in stage["components"].items():
                parts[names[_kind(component)]] += size / 2**30
            stacks[f"ZeRO {zero}" if zero != "0" else say("none (DDP)", "无（DDP）")] = parts
        return [columns(say("Memory of one rank at its peak", "单个进程的峰值内存"), stacks, "GiB", short, width=470)]


def _kind(component: str) -> str:
    if component.startswith("activations"):
        return "activations"
    if component in ("master weights", "optimizer states"):
        return "optimizer"
    return component if component in _KINDS else "passing"


def _gib(value: float) -> str:
    return short(value / 2**30)
