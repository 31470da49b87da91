"""PagedAttention: block tables of the engine's scheduler while requests come and go, and what other ways would waste.

The scheduler and its pool of blocks are the engine's own. Answers have lengths that were fixed beforehand in place of a
model that ends them: which tokens they are does not matter to memory.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from intaglio.atlas.charts import Axis, Curve, chart, head
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.svg import Canvas
from intaglio.engine.blocks import BlockPool
from intaglio.engine.scheduler import Scheduler
from intaglio.engine.sequence import Sequence as Text

__all__ = ["Batching", "Paging"]

_WIDTH, _SECONDS = 860.0, 0.5


@dataclass(frozen=True)
class Paging(Figure):
    """See above.

    Attributes:
        requests: that come, one a step, the first two with one prompt's beginning in common.
        block_size: tokens in a block.
        num_blocks: of the pool.
        longest: tokens of a sequence that a contiguous reservation would have to allow.
        seed: of lengths.
    """

    name: ClassVar[str] = "paged-attention"
    title: ClassVar[Words] = Words(
        "PagedAttention: blocks while requests come and go", "PagedAttention：请求来去时的块"
    )
    claim: ClassVar[Words] = Words(
        "PagedAttention manages the KV cache as an operating system manages memory: blocks of one size, wherever "
        "they are free, named by each sequence's table.",
        "PagedAttention 像操作系统管理内存那样管理 KV 缓存：等大的块，哪里空闲用哪里，由每个序列的块表记录。",
    )
    requests: int = 7
    block_size: int = 4
    num_blocks: int = 24
    longest: int = 32
    seed: int = 2

    def data(self) -> Any:
        paged = self._run(self.num_blocks, self.block_size)
        whole = self._run(self.num_blocks * self.block_size // self.longest, self.longest)
        return {"sizes": self.plain(), "paged": paged, "contiguous": whole}

    def _run(self, num_blocks: int, block_size: int) -> list[dict[str, Any]]:
        """After each step: the tables, and the slots held and filled."""
        scheduler = Scheduler([BlockPool(num_blocks, block_size)], self.longest, watermark=0.0)
        coming = _texts(self.requests, self.longest, self.seed)
        frames: list[dict[str, Any]] = []
        while coming or scheduler.has_work:
            if coming:
                scheduler.add(coming.pop(0))
            running = _step(scheduler)
            usage = scheduler.usage()
            tables = {text.request_id: [list(text.block_tables[0]), text.computed] for text in running}
            frames.append({"tables": tables, "tokens": usage.tokens, "slots": usage.slots})
            _end(scheduler, running)
        return frames

    def caption(self, data: Any) -> Words:
        sizes = data["sizes"]
        steps = {key: len(data[key]) for key in ("paged", "contiguous")}
        waste = {key: f"{_waste(data[key]):.0%}" for key in steps}
        size, longest, count = sizes["block_size"], sizes["longest"], sizes["num_blocks"]
        return Words(
            f"The engine's scheduler with {count} blocks of {size} tokens, a request a step. Each box is a block, "
            "its letter the sequence that holds it, the filling how full it is; two letters share a prefix. Of "
            f"the slots that sequences held, {waste['paged']} were empty; the same memory in reservations of "
            f"{longest} tokens would leave {waste['contiguous']} empty and take {steps['contiguous']} steps for "
            f"what took {steps['paged']}.",
            f"引擎的调度器，{count} 个块，每块 {size} 个词元；每步来一个请求。每格一个块，字母是持有它的序列，底色"
            f"是填充程度，两个字母表示共享前缀。序列持有的槽位中 {waste['paged']} 为空；同样的内存若按 {longest} 个"
            f"词元整段预留，空置 {waste['contiguous']}，并需 {steps['contiguous']} 步，而分页只需 {steps['paged']} "
            "步。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        frames, sizes = data["paged"], data["sizes"]
        chosen = [frames[place] for place in _few(len(frames), 6)]
        numbers = _few(len(frames), 6)
        panels = [
            _memory(frame, sizes, say(f"After step {number + 1}", f"第 {number + 1} 步后"))
            for number, frame in zip(numbers, chosen, strict=True)
        ]
        names = {"paged": say("paged", "分页"), "contiguous": say("contiguous", "整段预留")}
        used = [
            Curve(
                name,
                [(i, 100 * frame["tokens"] / max(frame["slots"], 1)) for i, frame in enumerate(data[key], 1)],
                look,
            )
            for look, (key, name) in enumerate(names.items())
        ]
        running = [
            Curve(name, [(i, len(frame["tables"])) for i, frame in enumerate(data[key], 1)], look)
            for look, (key, name) in enumerate(names.items())
        ]
        step = Axis(say("step", "步"))
        return [
            _moving(frames, sizes, say),
            *panels,
            chart(
                say("Slots held that have a token, %", "持有的槽位中有词元的 %"), used, step, Axis("%", low=0, high=100)
            ),
            chart(
                say("Sequences that run at once", "同时运行的序列"),
                running,
                step,
                Axis(say("sequences", "序列"), low=0),
            ),
        ]


@dataclass(frozen=True)
class Batching(Figure):
    """Which sequence gets how many tokens in which step: continuous batching, prompts in chunks.

    Attributes:
        requests: that come, one every other step.
        budget: tokens of a step.
        num_blocks, block_size: of the pool; few, so that somebody must wait or give way.
        longest: tokens of a sequence at most.
        seed: of lengths.
    """

    name: ClassVar[str] = "continuous-batching"
    title: ClassVar[Words] = Words("Continuous batching", "连续批处理")
    claim: ClassVar[Words] = Words(
        "Sequences join and leave the batch between any two steps; long prompts are read in pieces beside the answers.",
        "序列可在任意两步之间加入或离开批次；长提示被切成段，与回答同步读入。",
    )
    requests: int = 8
    budget: int = 16
    num_blocks: int = 20
    block_size: int = 4
    longest: int = 40
    seed: int = 4

    def data(self) -> Any:
        pool = BlockPool(self.num_blocks, self.block_size)
        scheduler = Scheduler([pool], self.longest, max_tokens_per_step=self.budget, watermark=0.0)
        coming = _texts(self.requests, self.longest, self.seed)
        steps: list[dict[str, Any]] = []
        while coming or scheduler.has_work:
            if coming and len(steps) % 2 == 0:
                scheduler.add(coming.pop(0))
            step = scheduler.schedule()
            parts = {p.sequence.request_id: [p.count, p.start < p.sequence.num_prompt_tokens] for p in step.scheduled}
            steps.append({"parts": parts, "preempted": [text.request_id for text in step.preempted]})
            scheduler.advance(step)
            _grow(part.sequence for part in step.scheduled if part.samples)
            _end(scheduler, list(scheduler.running))
        return {"sizes": self.plain(), "steps": steps}

    def caption(self, data: Any) -> Words:
        steps, sizes = data["steps"], data["sizes"]
        total = sum(count for step in steps for count, _ in step["parts"].values())
        lost = sum(len(step["preempted"]) for step in steps)
        return Words(
            f"{sizes['requests']} requests, one every other step, {sizes['budget']} tokens a step at most, a pool "
            f"of {sizes['num_blocks']} blocks of {sizes['block_size']}. A cell is what a sequence computes in a "
            f"step: its number of tokens, stronger for its prompt. {total} tokens in {len(steps)} steps. B finds the "
            "blocks of A's prompt in the cache. Sequences that lost their blocks to an earlier one and began "
            f"again (a cross): {lost}.",
            f"{sizes['requests']} 个请求，每两步来一个，每步至多 {sizes['budget']} 个词元，{sizes['num_blocks']} 个"
            f"块、每块 {sizes['block_size']}。一格是一个序列在一步中的计算：数字为词元数，颜色强者为提示。{len(steps)} "
            f"步共 {total} 个词元。B 在缓存中找到 A 提示的块。被更早的序列夺去块而重新开始（叉号）：{lost} 次。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        steps = data["steps"]
        names = list(dict.fromkeys(name for step in steps for name in step["parts"]))
        canvas = Canvas(_WIDTH, 0)
        top, wide = (
            head(canvas, say("Tokens of each sequence, by step", "各序列每步的词元")) + 4,
            (_WIDTH - 40) / len(steps),
        )
        for row, name in enumerate(names):
            canvas.text(14, top + 22 * row + 15, name, size=11)
            for place, step in enumerate(steps):
                _cell(canvas, step, name, 34 + place * wide, top + 22 * row, wide)
        canvas.text(34, top + 22 * len(names) + 14, say("time →", "时间 →"), "faint", size=11)
        canvas.height = top + 22 * len(names) + 22
        return [canvas]


def _cell(canvas: Canvas, step: Any, name: str, x: float, y: float, wide: float) -> None:
    if name in step["preempted"]:
        canvas.mark(4, x + wide / 2, y + 10)
    elif name in step["parts"]:
        count, prompt = step["parts"][name]
        look = 1 if prompt else 3
        canvas.rect(x, y, wide, 20, f"b{look}", said=f"{name}: {count}")
        if wide > 15 or count < 10:
            canvas.text(x + wide / 2, y + 14, str(count), f"on{look}", size=10, anchor="middle")


def _texts(count: int, longest: int, seed: int) -> list[Text]:
    """Prompts and answers of random lengths; the first two prompts begin alike."""
    draw = random.Random(seed)
    texts = []
    for number in range(count):
        length, answer = draw.randint(4, longest // 2), draw.randint(4, longest // 2 - 2)
        shared = list(range(12)) if number < 2 else []
        prompt = shared + [1000 * (number + 1) + place for place in range(length - min(len(shared), length - 1))]
        texts.append(Text(chr(65 + number), prompt[: length + 8], max_tokens=min(answer, longest - len(prompt))))
    return texts


def _step(scheduler: Scheduler) -> list[Text]:
    """One step; the sequences that run after it."""
    step = scheduler.schedule()
    scheduler.advance(step)
    _grow(part.sequence for part in step.scheduled if part.samples)
    return list(scheduler.running)


def _grow(sampling: Any) -> None:
    for text in sampling:
        text.tokens.append(9_000_000 + text.id * 1000 + len(text.tokens))


def _end(scheduler: Scheduler, running: Sequence[Text]) -> None:
    for text in running:
        if len(text.made) >= (text.max_tokens or 0):
            scheduler.finish(text)


def _waste(frames: Sequence[Any]) -> float:
    slots = sum(frame["slots"] for frame in frames)
    return 1 - sum(frame["tokens"] for frame in frames) / slots


def _few(count: int, wanted: int) -> list[int]:
    """Numbers below `count`, evenly spread."""
    return sorted({round(place * (count - 1) / (wanted - 1)) for place in range(wanted)})


def _memory(frame: Any, sizes: Any, title: str) -> Canvas:
    """The pool as a grid of blocks."""
    canvas = Canvas(272, 0)
    top = head(canvas, title)
    canvas.put(_grid(frame, sizes), 0, top)
    canvas.height = top + _grid_height(sizes)
    return canvas


_ACROSS, _BLOCK, _TALL = 6, 40.0, 24.0


def _grid_height(sizes: Any) -> float:
    return -(-sizes["num_blocks"] // _ACROSS) * (_TALL + 4) + 6


def _grid(frame: Any, sizes: Any) -> Canvas:
    canvas = Canvas(272, _grid_height(sizes))
    owners: dict[int, list[tuple[str, int]]] = {}
    for name, (table, computed) in frame["tables"].items():
        for place, block in enumerate(table):
            owners.setdefault(block, []).append(
                (name, min(computed - place * sizes["block_size"], sizes["block_size"]))
            )
    for block in range(sizes["num_blocks"]):
        x, y = 12 + block % _ACROSS * (_BLOCK + 2), block // _ACROSS * (_TALL + 4)
        canvas.rect(x, y, _BLOCK, _TALL, "box")
        if block in owners:
            filled = max(count for _, count in owners[block])
            look = 3 if len(owners[block]) == 1 else 2
            canvas.rect(x, y, _BLOCK * filled / sizes["block_size"], _TALL, f"b{look}", more='stroke-width="0"')
            names = "".join(name for name, _ in owners[block])
            canvas.text(x + 5, y + 16, names, f"on{look}", size=11)
    return canvas


def _moving(frames: Sequence[Any], sizes: Any, say: Say) -> Canvas:
    """The same as a film: each frame is shown in its turn, for ever; who wants no motion, and paper, get the "
    "first."""
    canvas = Canvas(272, 0)
    top = head(canvas, say("Every step, in turn", "逐步播放"))
    whole = len(frames) * _SECONDS
    for place, frame in enumerate(frames):
        share = ";".join("1" if one == place else "0" for one in range(len(frames)))
        canvas.parts.append(f'<g opacity="{int(place == 0)}">')
        timing = f'calcMode="discrete" repeatCount="indefinite" dur="{whole:g}s"'
        canvas.parts.append(f'<animate attributeName="opacity" {timing} values="{share}"/>')
        grid = _grid(frame, sizes)
        canvas.parts += [f'<g transform="translate(0 {top:.1f})">', *grid.parts, "</g>", "</g>"]
    canvas.height = top + _grid_height(sizes)
    return canvas
