"""Seq2Seq's bottleneck and the look back: two small models learn to write words backwards, one of them with attention.

After training both write freely, each letter read by the next step, which is when a decoder has nothing but what it was
handed.

Legend: B words, S letters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from intaglio.atlas.charts import Axis, Curve, chart, field
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.small_words import START, behind_start, ids_of, learn, letters_of, words_model
from intaglio.atlas.svg import Canvas
from intaglio.models.seq2seq import Seq2Seq

__all__ = ["Bottleneck", "right_share"]

_LOOKS: Final[dict[str, Any]] = {"without": None, "with": {"score": "additive", "fusion": "after"}}


@dataclass(frozen=True)
class Bottleneck(Figure):
    """See above.

    Attributes:
        hidden_size: of the models.
        steps, batch: of their training.
        longest: letters of a word in training.
        lengths: of words that are asked for.
        words: of each length.
        word: whose alignment is drawn.
    """

    name: ClassVar[str] = "bottleneck"
    title: ClassVar[Words] = Words("Seq2Seq's bottleneck, and the look back", "Seq2Seq 的瓶颈与回看")
    claim: ClassVar[Words] = Words(
        "One vector of fixed size is a bottleneck for long sources; attention scores every state of the source at "
        "each step and reads their weighted sum.",
        "一个定长向量是长源文的瓶颈；注意力在每一步给源文的每个状态打分，读取加权和。",
    )
    hidden_size: int = 64
    steps: int = 400
    batch: int = 48
    longest: int = 12
    lengths: tuple[int, ...] = (2, 4, 6, 8, 10, 12, 14, 16)
    words: int = 64
    word: str = "intaglio"

    def data(self) -> Any:
        models = {name: self._trained(look) for name, look in _LOOKS.items()}
        right = {name: [right_share(model, self._asked(n)) for n in self.lengths] for name, model in models.items()}
        source = ids_of(self.word)
        return {
            "lengths": list(self.lengths),
            "right": right,
            "word": self.word,
            "written": "".join(letters_of(_written(models["with"], source)[0])),
            "alignment": _alignment(models["with"], source)[0].tolist(),
        }

    def _trained(self, look: Any) -> Seq2Seq:
        model = words_model(self.hidden_size, 27, bidirectional=True, attention=look)
        return learn(model, lambda source: source.flip(1), steps=self.steps, batch=self.batch, longest=self.longest)

    def _asked(self, length: int) -> Tensor:
        return torch.randint(1, 27, (self.words, length), generator=torch.Generator().manual_seed(length))

    def caption(self, data: Any) -> Words:
        place = data["lengths"].index(self.longest) if self.longest in data["lengths"] else -1
        length, right = data["lengths"][place], {name: found[place] for name, found in data["right"].items()}
        return Words(
            f"Two GRU models of {self.hidden_size} features learn for {self.steps} steps to write words of up to "
            f"{self.longest} letters backwards. Of {length} letters {right['without']:.0%} are right without "
            f"attention and {right['with']:.0%} with it. The field shows where the second looks for each letter it "
            f"writes of “{data['word']}” (it wrote “{data['written']}”): from the end to the beginning, which "
            "nobody told it. One seed; with intervals: `intaglio ladder history`.",
            f"两个 {self.hidden_size} 维的 GRU 模型用 {self.steps} 步学习把至多 {self.longest} 个字母的词倒着写。"
            f"{length} 个字母时，没有注意力写对 {right['without']:.0%}，有注意力写对 {right['with']:.0%}。方图是后"
            f"者写“{data['word']}”的每个字母时看向何处（它写出“{data['written']}”）：从尾到头，没有人教过它。单个种"
            "子；带区间的版本：`intaglio ladder history`。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        names = {"without": say("without attention", "无注意力"), "with": say("with attention", "有注意力")}
        right = [
            Curve(
                name, list(zip(data["lengths"], (100 * share for share in data["right"][key]), strict=True)), look, True
            )
            for look, (key, name) in enumerate(names.items())
        ]
        return [
            chart(
                say("Letters written right, by length of the word", "按词长写对的字母"),
                right,
                Axis(say("letters of the word", "词的字母数")),
                Axis("%", low=0, high=100),
            ),
            field(
                say("Where it looks: a row for each letter written", "看向何处：每写一个字母一行"),
                data["alignment"],
                low=0,
                high=1,
                rows=list(data["written"]),
                names=list(data["word"]),
                across=say("source", "源文"),
                width=320,
            ),
        ]


def right_share(model: Seq2Seq, source: Tensor) -> float:
    """Of the letters of words (B, S), those that the model writes at their place of the reversed word."""
    return float((_written(model, source) == source.flip(1)).float().mean())


@torch.no_grad()
def _written(model: Seq2Seq, source: Tensor) -> Tensor:
    """(B, S): what is written letter by letter, each the likeliest."""
    dice = torch.Generator().manual_seed(0)  # a coin that always falls on the model's own letter
    nothing = torch.full_like(source, START)
    return model.decode(nothing, model.encode(source), sampling=1.0, generator=dice).argmax(dim=-1)


@torch.no_grad()
def _alignment(model: Seq2Seq, source: Tensor) -> Tensor:
    """(B, S, S): a row of weights for each letter that is written."""
    return model.alignment(behind_start(_written(model, source)), model.encode(source))
