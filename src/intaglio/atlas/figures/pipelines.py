"""Timelines of pipeline schedules: what each rank does and when it waits, as simulated and as the engine runs them.

The planner simulates the engine's orders; PyTorch's engine runs the same ones in gloo processes of this machine, with
stages that sleep (`atlas.asleep`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from intaglio.atlas.among import on_ranks
from intaglio.atlas.asleep import slept
from intaglio.atlas.busy import busy, load
from intaglio.atlas.charts import head
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.svg import Canvas, text_width
from intaglio.planning.schedules import schedule
from intaglio.planning.simulation import Run, simulate
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
_TIMED: Final = "1f1b"
"""Whose measured timeline is drawn."""

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
        seconds: that a rank sleeps in a forward.
        rounds: steps of which the quickest counts.
    """

    name: ClassVar[str] = "pipelines"
    title: ClassVar[Words] = Words("Pipeline schedules", "流水线调度")
    claim: ClassVar[Words] = Words(
        "Micro-batches fill a pipeline; schedules differ in how long ranks wait (the bubble).",
        "微批次填满流水线；各种调度的区别在于进程等待多久（气泡）。",
    )
    ranks: int = 4
    micro_batches: int = 8
    seconds: float = 0.04
    rounds: int = 3

    def data(self) -> Any:
        before = load()
        first, *_ = on_ranks(self.ranks, run_all, self.ranks, self.micro_batches, self.seconds, self.rounds)
        return {
            "sizes": self.plain(),
            "load": before,
            "simulated": self.simulated(),
            "measured": {
                name: 1 - 3 * self.micro_batches * self.seconds / run["makespan"] for name, run in first.items()
            },
            "timed": first[_TIMED],
        }

    def simulated(self) -> dict[str, dict[str, Any]]:
        """The timeline of each schedule, a forward of a rank taking 1, and its bubble."""
        runs = {name: simulate(schedule(self._spec(name), self.micro_batches)) for name in _NAMES}
        return {name: {**_timeline(run), "bubble": run.bubble} for name, run in runs.items()}

    def _spec(self, name: Schedule) -> PipelineSpec:
        return PipelineSpec(ranks=self.ranks, schedule=name)

    def caption(self, data: Any) -> Words:
        simulated, measured, sizes = data["simulated"], data["measured"], data["sizes"]
        most, least = (pick(simulated, key=lambda name: simulated[name]["bubble"]) for pick in (max, min))
        waits = [f"{_NAMES[name]} {simulated[name]['bubble']:.0%}" for name in (most, least)]
        real = [f"{_NAMES[name]} {measured[name]:.0%}" for name in (most, least)]
        count, long = sizes["ranks"], f"{1000 * sizes['seconds']:.0f}"
        note = busy(data["load"])
        return Words(
            f"{count} ranks, the orders that the engine runs, with a backward that takes twice a forward and sending "
            f"that takes no time. Share of waiting: {', '.join(waits)}. A stroke behind a number marks the rank's "
            f"later stage. All panels but the last have one scale of time. Measured: PyTorch's engine ran the same "
            f"orders in {count} processes of this machine, whose stages sleep, {long} ms in a forward of a rank; of "
            f"{sizes['rounds']} steps the quickest: {', '.join(real)}. What is above the simulation is Python's and "
            f"gloo's own, and the less the longer a stage takes.{note.en}",
            f"{count} 个进程，采用引擎实际运行的次序；反向用时为前向的两倍，传输不计时。等待占比：{'，'.join(waits)}。"
            "数字后的撇号表示该进程的后一段。除最后一格外，各格的时间尺度相同。实测：PyTorch 的引擎在本机 "
            f"{count} 个进程中按同样的次序运行，各段以睡眠代替计算，一个进程的前向为 {long} 毫秒；取 "
            f"{sizes['rounds']} 步中最快的一步：{'，'.join(real)}。高出模拟的部分来自 Python 与 gloo 本身，各段用时越"
            f"长，它越小。{note.zh}",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        simulated, measured = data["simulated"], data["measured"]
        longest = max(one["makespan"] for one in simulated.values())
        titles = {
            name: say(
                f"{_NAMES[name]}: bubble {one['bubble']:.1%}, measured {measured[name]:.1%}",
                f"{_NAMES[name]}：气泡 {one['bubble']:.1%}，实测 {measured[name]:.1%}",
            )
            for name, one in simulated.items()
        }
        timed = say(f"{_NAMES[_TIMED]} as it was measured", f"{_NAMES[_TIMED]} 的实测时间线")
        return [
            *(_panel(titles[name], one, longest, say) for name, one in simulated.items()),
            _panel(timed, data["timed"], data["timed"]["makespan"], say),
        ]


def run_all(ranks: int, count: int, seconds: float, rounds: int) -> dict[str, dict[str, Any]]:
    """On a rank: the measured timeline of each schedule."""
    return {name: _timeline(slept(PipelineSpec(ranks=ranks, schedule=name), count, seconds, rounds)) for name in _NAMES}


def _timeline(run: Run) -> dict[str, Any]:
    rows = [[[s.action.kind, s.action.stage, s.action.micro_batch, s.start, s.end] for s in row] for row in run.rows]
    return {"makespan": run.makespan, "rows": rows}


def _panel(title: str, one: Any, longest: float, say: Say) -> Canvas:
    canvas = Canvas(_WIDTH, 0)
    top = _legend(canvas, one, head(canvas, title), say)
    scale = (_WIDTH - _LEFT - 6) / longest
    for rank, row in enumerate(one["rows"]):
        y = top + rank * (_ROW + _GAP)
        canvas.text(6, y + 13, str(rank), "faint", size=11)
        canvas.rect(_LEFT, y, one["makespan"] * scale, _ROW, "grid")
        for part in _slots(row, scale, y):
            part(canvas)
    canvas.height = top + len(one["rows"]) * (_ROW + _GAP) + 4
    return canvas


def _legend(canvas: Canvas, one: Any, top: float, say: Say) -> float:
    """The kinds of a timeline under its title; returns the y under them."""
    there, x = {slot[0] for row in one["rows"] for slot in row}, _LEFT
    for kind in (kind for kind in _KINDS if kind in there):
        canvas.rect(x, top + 2, 11, 11, f"b{_LOOKS[kind]}")
        x += 36 + canvas.text(x + 17, top + 12, say(*_KINDS[kind]), size=11)
    return top + 20


def _slots(row: Sequence[Any], scale: float, y: float) -> Iterator[Any]:
    first = min(stage for _, stage, *_ in row)
    for kind, stage, micro_batch, start, end in row:
        x, width = _LEFT + start * scale, (end - start) * scale
        said = f"{_KINDS[kind].en} {micro_batch}, stage {stage}: {start:.4g} to {end:.4g}"
        yield lambda canvas, x=x, width=width, kind=kind, said=said: canvas.rect(
            x, y, width, _ROW, f"b{_LOOKS[kind]}", said=said, more='stroke-width="0.6"'
        )
        name = f"{micro_batch}'" if stage > first else str(micro_batch)
        if text_width(name, 10) + 2 < width:
            yield lambda canvas, x=x, width=width, kind=kind, name=name: canvas.text(
                x + width / 2, y + 12.5, name, f"on{_LOOKS[kind]}", size=10, anchor="middle"
            )
