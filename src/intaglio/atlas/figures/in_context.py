"""Zero-shot prompts and in-context examples: a real model's answers by the number of examples in its prompt.

The task is told in words, and then in none to several examples; no weight changes. Each question's examples are drawn
from the other pairs. An answer is right where the likeliest next token is the first of the true word.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch

from intaglio.atlas.charts import Axis, Curve, chart, head
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.real_model import fingerprint, required
from intaglio.atlas.svg import Canvas
from intaglio.checkpoints.load import load_directory
from intaglio.text.tokenizer import Tokenizer

__all__ = ["InContext", "prompt_of"]

_TASK: Final = "Write the opposite of each word."
_PAIRS: Final = (
    ("hot", "cold"),
    ("big", "small"),
    ("fast", "slow"),
    ("up", "down"),
    ("rich", "poor"),
    ("open", "closed"),
    ("young", "old"),
    ("happy", "sad"),
    ("wet", "dry"),
    ("early", "late"),
    ("day", "night"),
    ("left", "right"),
    ("hard", "soft"),
    ("full", "empty"),
    ("win", "lose"),
    ("dark", "light"),
)
_WIDTH: Final = 400.0
_LINE: Final = 19.0


@dataclass(frozen=True)
class InContext(Figure):
    """See above.

    Attributes:
        model: a pulled one.
        examples: in a prompt, of each kind of prompt.
        drawn: numbers of examples whose prompts are shown.
        seed: of which examples are taken.
    """

    name: ClassVar[str] = "in-context"
    title: ClassVar[Words] = Words("Zero-shot prompts and in-context examples", "零样本提示与上下文中的例子")
    claim: ClassVar[Words] = Words(
        "GPT-2 is given the task in the prompt (zero-shot), GPT-3 a few examples with it: in-context learning, in "
        "which nothing is trained.",
        "GPT-2 把任务写进提示（零样本），GPT-3 再加几个例子：上下文学习，什么也不训练。",
    )
    model: str = "smollm2-135m-instruct"
    examples: tuple[int, ...] = (0, 1, 2, 4, 8)
    drawn: tuple[int, int] = (0, 4)
    seed: int = 0

    def inputs(self) -> str:
        return fingerprint(self.model)

    @torch.inference_mode()
    def data(self) -> Any:
        folder = required(self.model)
        model, tokenizer = load_directory(folder, dtype="float32").eval(), Tokenizer.from_directory(folder)
        asked = {
            count: [self._asked(model, tokenizer, place, count) for place in range(len(_PAIRS))]
            for count in self.examples
        }
        return {
            "model": self.model,
            "pairs": len(_PAIRS),
            "right": [[count, sum(one["right"] for one in all_) / len(all_)] for count, all_ in asked.items()],
            "likely": [[count, sum(one["likely"] for one in all_) / len(all_)] for count, all_ in asked.items()],
            "prompts": [asked[count][0] for count in self.drawn],
        }

    def _asked(self, model: Any, tokenizer: Tokenizer, place: int, count: int) -> dict[str, Any]:
        """One question: its prompt, what the model says, and how likely it found the true word."""
        prompt = prompt_of(place, count, self.seed)
        true = tokenizer.encode(f" {_PAIRS[place][1]}", add_special_tokens=False)[0]
        likely = model(torch.tensor([tokenizer.encode(prompt)]))[0, -1].softmax(dim=-1)
        said = int(likely.argmax())
        return {
            "prompt": prompt,
            "said": tokenizer.decode([said]),
            "right": said == true,
            "likely": float(likely[true]),
        }

    def caption(self, data: Any) -> Words:
        right, likely = (dict(map(tuple, data[name])) for name in ("right", "likely"))
        none, most = min(right), max(right)
        return Words(
            f"{data['model']} is asked for the opposites of {data['pairs']} words, the likeliest next token being its "
            f"answer. Told the task alone it is right in {right[none]:.0%} and gives the true word {likely[none]:.0%} "
            f"on average; with {most} examples {right[most]:.0%} and {likely[most]:.0%}. The weights are the same in "
            "all. One draw of examples, one task, one small model; GPT-3's paper is about far larger ones.",
            f"问 {data['model']} {data['pairs']} 个词的反义词，最可能的下一个词元就是它的回答。只说明任务时答对 "
            f"{right[none]:.0%}，给正确的词的概率平均为 {likely[none]:.0%}；有 {most} 个例子时为 {right[most]:.0%} 和 "
            f"{likely[most]:.0%}。各种情况下权重相同。例子只抽一次，一个任务，一个小模型；GPT-3 的论文讲的是大得多的"
            "模型。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        titles = [
            say("Zero-shot", "零样本") if not count else say(f"{count} examples", f"{count} 个例子")
            for count in self.drawn
        ]
        curves = [
            Curve(say("right", "答对"), _percent(data["right"]), 0, True),
            Curve(say("probability of the true word", "正确的词的概率"), _percent(data["likely"]), 1, True),
        ]
        shown = [_prompt(title, one, say) for title, one in zip(titles, data["prompts"], strict=True)]
        across = Axis(say("examples in the prompt", "提示中的例子数"), ticks=self.examples)
        answers = say("Answers by the number of examples", "回答随例子数的变化")
        return [*shown, chart(answers, curves, across, Axis("%", low=0, high=100))]


def prompt_of(place: int, count: int, seed: int) -> str:
    """The task, `count` examples that are not the question, and the question: pair number `place`."""
    others = [pair for pair in _PAIRS if pair != _PAIRS[place]]
    examples = random.Random(seed * len(_PAIRS) + place).sample(others, count)
    return "\n".join([_TASK, *(f"{word} -> {other}" for word, other in examples), f"{_PAIRS[place][0]} ->"])


def _percent(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    return [(count, 100 * share) for count, share in points]


def _prompt(title: str, one: Any, say: Say) -> Canvas:
    """The prompt as it is fed, line by line, and what the model puts behind it."""
    canvas = Canvas(_WIDTH, 0)
    top = head(canvas, title) + 4
    lines = one["prompt"].split("\n")
    canvas.rect(12, top, _WIDTH - 24, 16 + _LINE * len(lines), "box", round_by=4)
    for place, line in enumerate(lines):
        end = 22 + canvas.text(22, top + 20 + _LINE * place, line)
    y = top + 20 + _LINE * (len(lines) - 1)
    said = one["said"].strip().replace("\n", "↵") or "␣"
    width = max(20 + 8.0 * len(said), 26)
    canvas.rect(end + 8, y - 13, width, 18, "b1" if one["right"] else "b0", round_by=3)
    canvas.text(end + 8 + width / 2, y, said, "on1" if one["right"] else "on0", anchor="middle")
    english, chinese = ("right", "对") if one["right"] else ("wrong", "错")
    share = f"{one['likely']:.0%}"
    told = say(f"{english}; the true word has {share}", f"{chinese}；正确的词占 {share}")
    canvas.text(end + width + 20, y, told, "faint", size=11)
    canvas.height = y + 20
    return canvas
