"""Prompt, retrieval or training: two tasks that differ in their data alone, walked as `intaglio advise --measure` does.

They are those of recipes/advice, with fewer rows and steps.
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from intaglio.advice.measure import measure
from intaglio.advice.outcome import Outcome, judge
from intaglio.advice.task import TaskSpec, read_sides
from intaglio.advice.workshop import LocalWorkshop
from intaglio.atlas.busy import busy, load
from intaglio.atlas.charts import Axis, columns, intervals, short
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.real_model import fingerprint, required, required_rows
from intaglio.atlas.svg import Canvas
from intaglio.retrieval.embedder import DEFAULT_EMBEDDER

__all__ = ["TASKS", "Roads"]

TASKS: Final[dict[str, dict[str, Any]]] = {
    "facts": {
        "rows": "evals:benjaminmoore_to_hex",
        "fields": {"messages": ".*'user', 'content': ['\"](?P<name>\\D*)['\"]}, .*"},
        "question": "What is the hex code of the Benjamin Moore color {name}?",
        "answer": "{ideals[0]}",
        "document": "The hex code of the Benjamin Moore color {name} is {ideals[0]}.",
    },
    "format": {
        "rows": "dates",
        "fields": {"locale": "da|de|en_GB|es|fr|id|it|nl|nb|pl|pt|sv"},
        "question": "Write this date as year-month-day: {prompt}",
        "answer": "{completion}",
    },
}
"""Facts that stand in documents; a form that only examples show."""

_TITLES: Final = {
    "facts": Words("Facts in documents: right answers", "文档里的事实：答对的比例"),
    "format": Words("A form to be learned: right answers", "要学的格式：答对的比例"),
}
_COSTS: Final = {
    "facts": Words("Facts: seconds of a request", "事实：每个请求的秒数"),
    "format": Words("Form: seconds of a request", "格式：每个请求的秒数"),
}


@dataclass(frozen=True)
class Roads(Figure):
    """See above.

    Attributes:
        model: a pulled model.
        facts, format: rows, a data set that was pulled or a file.
        roads: that are walked.
        rows, asked: of the two sides.
        steps: of training, of `length` tokens each.
        requests: among which set-up is shared.
    """

    name: ClassVar[str] = "roads"
    title: ClassVar[Words] = Words("Prompt, retrieval or fine-tuning", "提示、检索还是微调")
    claim: ClassVar[Words] = Words(
        "Retrieval brings facts, training brings form; a prompt costs nothing and brings what the model knows.",
        "检索带来事实，训练带来格式；提示不花成本，只带来模型已知的东西。",
    )
    model: str = "smollm2-135m-instruct"
    facts: str = TASKS["facts"]["rows"]
    format: str = TASKS["format"]["rows"]
    roads: tuple[str, ...] = ("prompt", "few-shot", "RAG", "LoRA")
    rows: int = 400
    asked: int = 32
    steps: int = 30
    length: int = 512
    requests: int = 100

    def data(self) -> Any:
        required(self.model)
        if "RAG" in self.roads:
            required(DEFAULT_EMBEDDER)
        tasks = {name: self.task(name) for name in TASKS}
        before = load()
        return {
            "sizes": self.plain(),
            "cores": os.cpu_count(),
            "load": before,
            "tasks": {name: self._walked(task) for name, task in tasks.items()},
        }

    def inputs(self) -> str:
        return fingerprint(self.model) + fingerprint(DEFAULT_EMBEDDER)

    def task(self, name: str) -> TaskSpec:
        """One of the two.

        Raises:
            UserError: its rows are not here.
        """
        own = {key: value for key, value in TASKS[name].items() if key != "rows"}
        path = required_rows(getattr(self, name))
        sides = {"train": {"path": path, "rows": self.rows}, "test": {"path": path, "rows": self.asked}}
        effort = {
            "metric": "contains",
            "max_tokens": 24,
            "shots": (3,),
            "passages": (1,),
            "chosen_on": 1,
            "timed": 4,
            "requests": self.requests,
            "roads": self.roads,
            "training": {"steps": self.steps, "max_length": self.length},
        }
        return TaskSpec.model_validate({"model": self.model, **sides, **own, **effort})

    def _walked(self, task: TaskSpec) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            workshop = LocalWorkshop(task, read_sides(task), Path(folder), _silent)
            found = measure(workshop, Path(folder), _silent)
        return {
            "roads": [one.plain() | {"share": _shared(one, task.requests)} for one in found],
            **_judged(found, task),
        }

    def caption(self, data: Any) -> Words:
        sizes, note = data["sizes"], busy(data["load"])
        best = {
            name: max(task["roads"], key=lambda one: one["quality"]["mean"]) for name, task in data["tasks"].items()
        }
        right = {name: f"{one['road']} {one['quality']['mean']:.0%}" for name, one in best.items()}
        plain = {name: f"{task['roads'][0]['quality']['mean']:.0%}" for name, task in data["tasks"].items()}
        return Words(
            f"{sizes['model']} on two tasks that differ in their data alone: hex codes of paints, a sentence on each "
            "standing among the documents, and dates to be written as year-month-day. The bare prompt is right for "
            f"{plain['facts']} and {plain['format']}; the best are {right['facts']} and {right['format']}. "
            f"{sizes['asked']} questions each, with 95 % intervals; LoRA trains {sizes['steps']} steps. Seconds are of "
            f"this machine's {data['cores']} cores, training and index shared among {sizes['requests']} requests. "
            f"`intaglio advise --measure` does the same with rows of your own.{note.en}",
            f"{sizes['model']} 做两个只有数据不同的任务：油漆色的十六进制代码（文档中各有一句），以及把日期写成年-月-"
            f"日。只用提示，两个任务答对 {plain['facts']} 与 {plain['format']}；最好的分别是 {right['facts']} 与 "
            f"{right['format']}。各 {sizes['asked']} 题，带 95 % 区间；LoRA 训练 {sizes['steps']} 步。秒数来自本机的 "
            f"{data['cores']} 个核，训练与索引的时间由 {sizes['requests']} 个请求分摊。`intaglio advise --measure` 可以"
            f"用自己的数据做同样的比较。{note.zh}",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        requests = data["sizes"]["requests"]
        names = (say("answering", "回答"), say(f"training or index, 1/{requests}", f"训练或索引的 1/{requests}"))
        panels = []
        for name, task in data["tasks"].items():
            right = {one["road"]: _percent(one["quality"]) for one in task["roads"]}
            stacks = {
                one["road"]: dict(zip(names, (one["latency_s"]["mean"], one["share"]), strict=True))
                for one in task["roads"]
            }
            percent = Axis(say("% right, with its 95 % interval", "答对 %，带 95 % 区间"), low=0, high=100, show=short)
            panels += [
                intervals(say(*_TITLES[name]), right, percent),
                columns(say(*_COSTS[name]), stacks, say("seconds", "秒"), short),
            ]
        return panels


def _judged(found: Sequence[Outcome], task: TaskSpec) -> dict[str, Any]:
    verdict = judge(found, task.requests, task.good_enough)
    return {"winner": verdict.winner.name if verdict.winner else None}


def _shared(one: Outcome, requests: int) -> float:
    return one.setup_seconds / requests


def _percent(quality: Any) -> tuple[float, float, float]:
    return 100 * quality["mean"], 100 * quality["low"], 100 * quality["high"]


def _silent(line: str) -> None:
    """Nobody watches."""
