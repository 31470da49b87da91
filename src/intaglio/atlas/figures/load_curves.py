"""What a server gives as more ask at once: a short load test of ours against our own server, on a real model."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from intaglio.atlas.busy import busy, load
from intaglio.atlas.charts import Axis, Curve, chart, short
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.real_model import fingerprint, required
from intaglio.atlas.svg import Canvas
from intaglio.evaluation.load.arrivals import ClosedLoop
from intaglio.evaluation.load.lengths import Lengths
from intaglio.evaluation.load.prompts import RandomPrompts
from intaglio.evaluation.load.run import Measured, Plan, measure
from intaglio.evaluation.load.target import Target
from intaglio.serving.beside import served

__all__ = ["LoadCurves"]


@dataclass(frozen=True)
class LoadCurves(Figure):
    """See above.

    Attributes:
        model: a pulled model.
        levels: conversations that run at once.
        prompt, answer: tokens of each.
        seconds: of a level, after which no conversation begins.
        rounds: through all levels, one after the other; of each level the round of the highest throughput counts, so
            that what else the machine did for a while is left out.
    """

    name: ClassVar[str] = "load-curves"
    title: ClassVar[Words] = Words("A server under load", "负载下的服务器")
    claim: ClassVar[Words] = Words(
        "What runs together shares each reading of the weights: throughput rises with the load, and every single "
        "answer gets slower.",
        "同时运行的请求共用每一次权重读取：负载越高，吞吐量越大，而每个回答越慢。",
    )
    model: str = "smollm2-135m-instruct"
    levels: tuple[int, ...] = (1, 2, 4, 8, 16)
    prompt: int = 64
    answer: int = 32
    seconds: float = 3.0
    rounds: int = 2

    def data(self) -> Any:
        folder, before = required(self.model), load()
        plan = Plan(
            tuple(ClosedLoop(level) for level in self.levels) * self.rounds,
            RandomPrompts(Lengths.fixed(self.prompt), Lengths.fixed(self.answer)),
            duration=self.seconds,
        )
        with served(str(folder), "--served-model-name", "asked") as address:
            measured = measure(Target(address, fields={"ignore_eos": True}), plan)
        return {
            "sizes": self.plain(),
            "cores": os.cpu_count(),
            "load": before,
            "levels": [max(found, key=lambda one: one["tokens_per_second"]) for found in _by_level(measured)],
        }

    def inputs(self) -> str:
        return fingerprint(self.model)

    def caption(self, data: Any) -> Words:
        sizes, note = data["sizes"], busy(data["load"])
        first, last = data["levels"][0], data["levels"][-1]
        tokens = [short(one["tokens_per_second"]) for one in (first, last)]
        waits = [short(1000 * one["ttft"]["p50"]) for one in (first, last)]
        each = [short(1000 * one["tpot"]["p50"]) for one in (first, last)]
        count, requests = last["concurrency"], sum(one["requests"] for one in data["levels"])
        return Words(
            f"{sizes['model']} behind `intaglio serve` on {data['cores']} cores, asked by `intaglio load` for "
            f"{sizes['seconds']:g} seconds at each level, {requests} requests in all: prompts of {sizes['prompt']} "
            f"random words, answers of {sizes['answer']} tokens, a new one as soon as one is done; of "
            f"{sizes['rounds']} rounds the better. From "
            f"{first['concurrency']} to {count} at once: {tokens[0]} to {tokens[1]} tokens a second, the first token "
            f"after {waits[0]} to {waits[1]} ms, each further one after {each[0]} to {each[1]} ms (medians).{note.en}",
            f"{sizes['model']} 由 `intaglio serve` 在 {data['cores']} 个核上服务，`intaglio load` 在每一级压测 "
            f"{sizes['seconds']:g} 秒，共 {requests} 个请求：提示为 {sizes['prompt']} 个随机词，回答 {sizes['answer']} "
            f"个词元，一个结束即发下一个；{sizes['rounds']} 轮中取较好的。同时 {first['concurrency']} 个到 {count} 个："
            f"每秒 {tokens[0]} 到 {tokens[1]} 个词元，首词元 {waits[0]} 到 {waits[1]} 毫秒，之后每个 {each[0]} 到 "
            f"{each[1]} 毫秒（中位数）。{note.zh}",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        levels = data["levels"]
        x = Axis(say("requests at once", "同时的请求数"), base=2, ticks=[one["concurrency"] for one in levels])
        rate = [(one["concurrency"], one["tokens_per_second"]) for one in levels]
        per_second = Axis(say("tokens/s", "词元/秒"), low=0, show=short)
        return [
            chart(say("Tokens written in a second", "每秒写出的词元"), [Curve("", rate, 0, True)], x, per_second),
            _times(say("To the first token", "到首个词元"), levels, "ttft", x, say),
            _times(say("For each further token", "之后每个词元"), levels, "tpot", x, say),
        ]


def _by_level(measured: Sequence[Measured]) -> list[list[dict[str, Any]]]:
    """What was found at each level, round by round."""
    found: dict[float, list[dict[str, Any]]] = {}
    for one in measured:
        found.setdefault(one.level.load, []).append(_level(one))
    return list(found.values())


def _level(one: Measured) -> dict[str, Any]:
    found = one.summary
    times = {key: {p: found[f"{key}_s"][p] for p in ("p50", "p90")} for key in ("ttft", "tpot")}
    tokens = found["output_tokens_per_second"]
    return {"concurrency": one.level.load, "requests": found["requests"], "tokens_per_second": tokens, **times}


def _times(title: str, levels: Sequence[Any], key: str, x: Axis, say: Say) -> Canvas:
    names = {"p50": say("half of them within", "半数不超过"), "p90": say("nine of ten within", "九成不超过")}
    curves = [
        Curve(name, [(one["concurrency"], 1000 * one[key][p]) for one in levels], look, True)
        for look, (p, name) in enumerate(names.items())
    ]
    return chart(title, curves, x, Axis(say("milliseconds", "毫秒"), low=0, show=short))
