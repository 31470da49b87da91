"""Timelines of pipeline schedules from the planner's simulation: what each rank does and when it waits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from intaglio.atlas.charts import head
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.svg import Canvas, text_width
from intaglio.planning.schedules import schedule
from intaglio.planning.simulation import simulate
from intaglio.specs.parallel import PipelineSpec, Schedule

__all__ = ["Pipelines"]

_NAMES: Final[dict[Schedule, str]] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved 1F1B",
    "interleaved_zero_bubble": "Interleaved zero-bubble",
    "zbv_zero_bubble": "ZB-V",
    "dual_pipe_v": "DualPipeV",
}
_LOOKS: Final = {"F": 1, "B": 0, "I": 2, "W": 3}
_KINDS: Final = {
    "F": Words("forward", "前向"),
    "B": Words("backward", "反向"),
    "I": Words("backward of inputs", "对输入的反向"),
    "W": Words("backward of weights", "对权重的反向"),
}
_WIDTH, _LEFT, _ROW, _GAP = 860.0, 24.0, 17.0, 3.0


@dataclass(frozen=True)
class Pipelines(Figure):
    """See above.

    Attributes:
        ranks: of the pipeline.
        micro_batches: of a step.
    """

    name: ClassVar[str] = "pipelines"
    title: ClassVar[Words] = Words("Pipeline schedules", "流水线调度")
    claim: ClassVar[Words] = Words(
        "Micro-batches fill a pipeline; schedules differ in how long ranks wait (the bubble).",
        "微批次填满流水线；各种调度的区别在于进程等待多久（气泡）。",
    )
    ranks: int = 4
    micro_batches: int = 8

    def data(self) -> Any:
        return {name: self._timeline(name) for name in _NAMES}

    def _timeline(self, name: Schedule) -> dict[str, Any]:
        run = simulate(schedule(PipelineSpec(ranks=self.ranks, schedule=name), self.micro_batches))
        rows = [
            [[s.action.kind, s.action.stage, s.action.micro_batch, s.start, s.end] for s in row] for row in run.rows
        ]
        return {"bubble": run.bubble, "makespan": run.makespan, "rows": rows}

    def caption(self, data: Any) -> Words:
        most, least = (pick(data, key=lambda name: data[name]["bubble"]) for pick in (max, min))
        numbers = f"{_NAMES[most]} {data[most]['bubble']:.0%}, {_NAMES[least]} {data[least]['bubble']:.0%}"
        told = f"{_NAMES[most]} {data[most]['bubble']:.0%}，{_NAMES[least]} {data[least]['bubble']:.0%}"
        return Words(
            f"{len(data[most]['rows'])} ranks, the orders that the engine runs, with a backward that takes twice a "
            f"forward and sending that takes no time. Share of waiting: {numbers}. All panels have one scale of "
            "time.",
            f"{len(data[most]['rows'])} 个进程，采用引擎实际运行的次序；反向用时为前向的两倍，传输不计时。等待占"
            f"比：{told}。各格的时间尺度相同。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        longest = max(one["makespan"] for one in data.values())
        return [_legend(data, say), *(_panel(_NAMES[name], one, longest, say) for name, one in data.items())]


def _legend(data: Any, say: Say) -> Canvas:
    canvas, x = Canvas(_WIDTH, 22), _LEFT
    kinds = {slot[0] for one in data.values() for row in one["rows"] for slot in row}
    for kind in (kind for kind in _KINDS if kind in kinds):
        canvas.rect(x, 4, 13, 13, f"b{_LOOKS[kind]}")
        x += 26 + canvas.text(x + 18, 15, say(*_KINDS[kind]), size=11)
        x += 10
    return canvas


def _panel(name: str, one: Any, longest: float, say: Say) -> Canvas:
    canvas = Canvas(_WIDTH, 0)
    top = head(canvas, say(f"{name}: bubble {one['bubble']:.1%}", f"{name}：气泡 {one['bubble']:.1%}"))
    scale = (_WIDTH - _LEFT - 6) / longest
    for rank, row in enumerate(one["rows"]):
        y = top + rank * (_ROW + _GAP)
        canvas.text(6, y + 13, str(rank), "faint", size=11)
        canvas.rect(_LEFT, y, one["makespan"] * scale, _ROW, "grid")
        for part in _slots(row, scale, y):
            part(canvas)
    canvas.height = top + len(one["rows"]) * (_ROW + _GAP) + 4
    return canvas


def _slots(row: Sequence[Any], scale: float, y: float) -> Iterator[Any]:
    for kind, stage, micro_batch, start, end in row:
        x, width = _LEFT + start * scale, (end - start) * scale
        said = f"{_KINDS[kind].en} {micro_batch}, stage {stage}: {start:.4g} to {end:.4g}"
        yield lambda canvas, x=x, width=width, kind=kind, said=said: canvas.rect(
            x, y, width, _ROW, f"b{_LOOKS[kind]}", said=said, more='stroke-width="0.6"'
        )
        name = str(micro_batch)
        if text_width(name, 10) + 2 < width:
            yield lambda canvas, x=x, width=width, kind=kind, name=name: canvas.text(
                x + width / 2, y + 12.5, name, f"on{_LOOKS[kind]}", size=10, anchor="middle"
            )
