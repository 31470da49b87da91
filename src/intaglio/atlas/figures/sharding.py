"""Memory of a rank by component and ZeRO stage, from the planner; and of a small model held by real ranks.

The ranks are gloo processes of this machine. In each the trainer's own loop takes a step on real tensors under
PyTorch's `MemTracker` (`training.memory.rehearsal`): what stays is counted on the tensors, the rest is what the tracker
saw beyond it at its worst moment.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final

from intaglio.atlas.among import on_ranks
from intaglio.atlas.charts import columns, short
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.small_runs import small_spec
from intaglio.atlas.svg import Canvas
from intaglio.lineage import preset
from intaglio.planning.jobs import JobSpec
from intaglio.planning.rank_plan import plan_rank
from intaglio.planning.report import plan
from intaglio.specs import DecoderSpec
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.memory.rehearsal import Rehearsal
from intaglio.training.processes.together import Together

__all__ = ["Sharding"]

_KINDS: Final = {
    "weights": Words("weights and master weights", "权重与主权重"),
    "gradients": Words("gradients", "梯度"),
    "optimizer": Words("moments", "动量"),
    "activations": Words("activations", "激活"),
    "passing": Words("loss, buffers, on the way", "损失、缓冲与途中"),
    "rest": Words("activations and all else", "激活及其余"),
}
_KIND_OF: Final = {
    "weights": "weights",
    "master weights": "weights",
    "masters": "weights",
    "gradients": "gradients",
    "optimizer states": "optimizer",
    "optimizer_states": "optimizer",
}
_STAGES: Final = ("0", "1", "2", "3")


@dataclass(frozen=True)
class Sharding(Figure):
    """See above.

    Attributes:
        model: a preset.
        ranks: that share.
        sequence: tokens of a row.
        processes: that share the small model.
        width, layers: of it.
        row: tokens of a row of it.
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
    processes: int = 4
    width: int = 256
    layers: int = 4
    row: int = 256

    def data(self) -> Any:
        sizes = {"model": self.model, "sequence": self.sequence, "ranks": self.ranks}
        return {**sizes, "stages": self.planned(), "small": self.small()}

    def planned(self) -> dict[str, dict[str, Any]]:
        """By stage, the moment of a rank that needs most, and its parts."""
        spec = preset(self.model).spec
        assert isinstance(spec, DecoderSpec)
        stages = {}
        for zero in _STAGES:
            found = plan(spec, {"dp": self.ranks, "zero": int(zero)}, sequence=self.sequence).plan.worst
            stages[zero] = {"moment": found.peak.name, "components": dict(found.peak.parts)}
        return stages

    def small(self) -> dict[str, Any]:
        """The small model: what is planned by stage, and what the first of its processes holds."""
        feed_forward = {"intermediate_size": 3 * self.width, "activation": "silu", "gated": True}
        spec = small_spec(self.width, self.row, feed_forward, layers=self.layers)
        job = JobSpec(sequence=self.row, chunk=self.row)
        layouts = {zero: ParallelSpec(dp=self.processes, zero=int(zero)) for zero in _STAGES}
        first, *_ = on_ranks(self.processes, held, spec, job, layouts)
        planned = {zero: plan_rank(spec, job, one, cpu=True, native=False).peak for zero, one in layouts.items()}
        return {
            "parameters": spec.num_parameters(),
            "processes": self.processes,
            "row": self.row,
            "planned": {zero: _with_rest(peak.parts, peak.num_bytes) for zero, peak in planned.items()},
            "held": {zero: _with_rest(states, peak) for zero, (states, peak) in first.items()},
        }

    def caption(self, data: Any) -> Words:
        peaks = {zero: sum(stage["components"].values()) for zero, stage in data["stages"].items()}
        numbers = " → ".join(_gib(peaks[zero]) for zero in _STAGES)
        moments = ", ".join(dict.fromkeys(stage["moment"] for stage in data["stages"].values()))
        small = data["small"]
        apart = f"{max(abs(_total(small['planned'][z]) / _total(small['held'][z]) - 1) for z in _STAGES):.1%}"
        size, count, row = f"{small['parameters']:,}", small["processes"], small["row"]
        return Words(
            f"{data['model']}, {data['ranks']} ranks, a row of {data['sequence']:,} tokens each in bf16 with AdamW "
            f"in fp32 and no checkpointing, at the moment that needs most ({moments}): {numbers} GiB. As this code's "
            "engine runs them, stages 1 and 2 keep the same at that moment. The other panels hold the plan against "
            f"what is: a model of {size} parameters, trained with rows of {row} tokens in {count} gloo processes on "
            "CPUs. Measured are the tensors that the first of them holds, and what PyTorch's MemTracker saw beyond "
            f"these at the worst moment of a step; the plan's peak is at most {apart} off.",
            f"{data['model']}，{data['ranks']} 个进程，各一行 {data['sequence']:,} 词元，bf16 计算、fp32 的 AdamW、"
            f"不重算，取最占内存的时刻（{moments}）：{numbers} GiB。在本代码的引擎中，1 与 2 两级在这一时刻占用相同。"
            f"另外两格用实测检验规划：一个 {size} 参数的模型，每行 {row} 个词元，在 CPU 上的 {count} 个 gloo 进程中训"
            f"练。实测值是第一个进程持有的张量，加上 PyTorch 的 MemTracker 在一步的最高点另外看到的；规划的峰值与之最多"
            f"相差 {apart}。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        large = {zero: stage["components"] for zero, stage in data["stages"].items()}
        small, count = data["small"], data["small"]["processes"]
        return [
            _columns(say("One rank at its peak, planned", "单个进程的峰值，规划"), large, 30, say),
            _columns(
                say(f"A small model on {count}, planned", f"小模型，{count} 个进程，规划"), small["planned"], 20, say
            ),
            _columns(say(f"The same, measured on {count}", f"同上，{count} 个进程上实测"), small["held"], 20, say),
        ]


def held(spec: DecoderSpec, job: JobSpec, layouts: Mapping[str, ParallelSpec]) -> dict[str, tuple[dict[str, int], int]]:
    """On a rank: what stays of each layout by kind, and all that its step takes at the moment that takes most."""
    measured = {name: Rehearsal(spec, job, Together(layout, "cpu")).measure() for name, layout in layouts.items()}
    return {
        name: (asdict(one.states), max(moment.num_bytes for moment in one.moments.values()))
        for name, one in measured.items()
    }


def _with_rest(parts: Mapping[str, int], total: int) -> dict[str, int]:
    """What stays by kind, and what is beside it at the peak."""
    kinds = dict.fromkeys(("weights", "gradients", "optimizer"), 0)
    for name, size in parts.items():
        if name in _KIND_OF:
            kinds[_KIND_OF[name]] += size
    return {**kinds, "rest": total - sum(kinds.values())}


def _columns(title: str, stages: Mapping[str, Mapping[str, int]], power: int, say: Say) -> Canvas:
    """A column for each stage, in GiB or MiB."""
    kinds = {_kind(component) for components in stages.values() for component in components}
    names = {key: say(*words) for key, words in _KINDS.items() if key in kinds}
    stacks = {}
    for zero, components in stages.items():
        parts = dict.fromkeys(names.values(), 0.0)
        for component, size in components.items():
            parts[names[_kind(component)]] += size / 2**power
        stacks[f"ZeRO {zero}" if zero != "0" else say("none (DDP)", "无（DDP）")] = parts
    return columns(title, stacks, {20: "MiB", 30: "GiB"}[power], short)


def _kind(component: str) -> str:
    if component.startswith("activations"):
        return "activations"
    return component if component in _KINDS else _KIND_OF.get(component, "passing")


def _total(parts: Mapping[str, int]) -> int:
    return sum(parts.values())


def _gib(value: float) -> str:
    return short(value / 2**30)
