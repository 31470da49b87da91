"""Where the heads of a real model look when they read a pronoun: attention maps of one sentence in two languages."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

import torch
from torch import Tensor

from intaglio.atlas.charts import field
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.real_model import fingerprint, required
from intaglio.atlas.svg import Canvas
from intaglio.checkpoints.load import load_directory
from intaglio.parts.context import Causal, Scores, visible
from intaglio.text.tokenizer import Tokenizer

__all__ = ["AttentionMaps", "Watching"]

_SENTENCES = (
    ("那只动物没有过马路，因为它太累了", "它", "动物"),
    ("The animal didn't cross the street because it was too tired", " it", " animal"),
)


class Watching(Causal):
    """Causal attention that keeps the weights of every layer.

    Attributes:
        weights: of each layer, (B, H, T, T), in the order of the layers.
    """

    def __init__(self) -> None:
        self.weights: list[Tensor] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor | int, scores: Scores) -> Tensor:
        assert isinstance(value, Tensor)
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        seen = visible(self.positions, self.positions, scores.window)
        products = (query @ key.mT * scores.scale).masked_fill(~seen, float("-inf"))
        weights = products.softmax(dim=-1)
        self.weights.append(weights)
        return weights @ value


@dataclass(frozen=True)
class AttentionMaps(Figure):
    """See above.

    Attributes:
        model: a pulled one, without a cap on its scores.
        maps: heads that are drawn of each sentence: those that look most from the pronoun to its noun.
    """

    name: ClassVar[str] = "attention-maps"
    title: ClassVar[Words] = Words("What the heads of a real model look at", "真实模型的各个头在看什么")
    claim: ClassVar[Words] = Words(
        "Several heads for several kinds of relation, such as what a pronoun refers to.",
        "多个头对应多种关系，例如代词指的是什么。",
    )
    model: str = "smollm2-135m-instruct"
    maps: int = 2

    def inputs(self) -> str:
        return fingerprint(self.model)

    @torch.inference_mode()
    def data(self) -> Any:
        folder = required(self.model)
        model, tokenizer = load_directory(folder, dtype="float32").eval(), Tokenizer.from_directory(folder)
        return {"model": self.model, "sentences": [self._sentence(model, tokenizer, *one) for one in _SENTENCES]}

    def _sentence(self, model: Any, tokenizer: Tokenizer, text: str, pronoun: str, noun: str) -> dict[str, Any]:
        encoded = tokenizer.encode_with_offsets(text)
        watching = Watching()
        model(torch.tensor([encoded.ids]), context=watching)
        pieces = [next(it) for _, it in groupby(encoded.offsets)]
        weights = _joined(torch.cat(watching.weights), [pieces.index(one) for one in encoded.offsets])  # (L, H, P, P)
        rows, columns = (_pieces_of(text, part, pieces) for part in (pronoun, noun))
        looks = weights[:, :, rows][..., columns].sum(dim=-1).mean(dim=-1)  # (L, H)
        best = looks.flatten().topk(self.maps).indices.tolist()
        heads = [divmod(one, looks.shape[1]) for one in best]
        return {
            "text": text,
            "pieces": [text[low:high].strip() for low, high in pieces],
            "pronoun": pronoun.strip(),
            "noun": noun.strip(),
            "looks": looks.tolist(),
            "heads": [[layer, head, weights[layer, head].tolist()] for layer, head in heads],
        }

    def caption(self, data: Any) -> Words:
        told = []
        for one in data["sentences"]:
            layer, head, _ = one["heads"][0]
            told.append((one["pronoun"], one["noun"], layer, head, one["looks"][layer][head]))
        english = "; ".join(f"{p} → {n}: layer {a}, head {b}, {w:.0%}" for p, n, a, b, w in told)
        chinese = "；".join(f"{p} → {n}：第 {a} 层第 {b} 头，{w:.0%}" for p, n, a, b, w in told)
        return Words(
            f"{data['model']}, layers and heads counted from 0. The narrow field has a cell for each head: how "
            "much of its attention goes from the pronoun to its noun. The squares are the heads with most of it "
            f"({english}). Much attention rests on the first token, where a head looks that has nothing to look "
            "for. A Chinese character that is several tokens is one row: their mean where they ask, their sum "
            "where they are seen.",
            f"{data['model']}，层与头从 0 数起。窄图每格一个头：从代词到名词的注意力占比。方图是占比最大的头（"
            f"{chinese}）。许多注意力停在第一个词元：无事可看的头就看那里。由几个词元组成的汉字合为一行：提问取平"
            "均，被看取总和。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        return [panel for one in data["sentences"] for panel in _panels(one, say)]


def _panels(one: Any, say: Say) -> list[Canvas]:
    pair = f"{one['pronoun']} → {one['noun']}"
    heads = field(
        say(f"All heads: {pair}", f"所有的头：{pair}"),
        one["looks"],
        low=0,
        across=say("head", "头"),
        down=say("layer", "层"),
        width=200,
        tall=10,
        names=[str(number) for number in range(len(one["looks"][0]))],
    )
    maps = [
        field(
            say(f"Layer {layer}, head {number}", f"第 {layer} 层，第 {number} 头"),
            weights,
            low=0,
            high=1,
            rows=one["pieces"],
            names=one["pieces"],
            width=320,
        )
        for layer, number, weights in one["heads"]
    ]
    return [heads, *maps]


def _joined(weights: Tensor, places: list[int]) -> Tensor:
    """(L, H, T, T) -> (L, H, P, P): tokens of one piece ask as their mean, and are seen as their sum."""
    member = torch.nn.functional.one_hot(torch.tensor(places)).to(weights.dtype)  # (T, P)
    return (member / member.sum(dim=0)).T @ weights @ member


def _pieces_of(text: str, part: str, pieces: Sequence[tuple[int, int]]) -> list[int]:
    """Pieces that share letters with the first occurrence of `part`, its leading space aside."""
    start = text.index(part) + len(part) - len(part.lstrip())
    end = text.index(part) + len(part)
    return [place for place, (low, high) in enumerate(pieces) if low < end and high > start]
