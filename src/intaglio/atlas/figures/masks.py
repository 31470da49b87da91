"""Who sees whom: the masks of every kind of context, found by asking the code's own attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from intaglio.atlas.charts import field
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.svg import Canvas
from intaglio.engine.cache import ContiguousCache
from intaglio.parts.context import (
    AttentionContext,
    Causal,
    Packed,
    Padded,
    Scores,
    Whole,
    positions_of,
    visible,
)
from intaglio.specs import DecoderSpec

__all__ = ["Masks", "seen_by"]

_TITLES = {
    "causal": Words("Causal", "因果"),
    "banded": Words("Banded: a window of {window}", "带状：窗口 {window}"),
    "alternating": Words("A dense layer over a banded one: what reaches", "带状层之上加一个稠密层：能到达的"),
    "two bands": Words("Two banded layers: what reaches", "两个带状层：能到达的"),
    "packed": Words("Packed documents of {documents}", "打包的文档：{documents}"),
    "padded": Words("Padding on the left: {padding} tokens", "左侧填充：{padding} 个"),
    "whole": Words("An encoder's: all see all", "编码器：全部可见"),
    "prefix": Words("A prefix of {prefix} seen by all", "前缀 {prefix} 个对所有可见"),
    "cached": Words("{new} new tokens over a cache of {old}", "缓存 {old} 个之后的 {new} 个新词元"),
}


@dataclass(frozen=True)
class Masks(Figure):
    """See above.

    Attributes:
        tokens: of a row.
        window: of the band.
        documents: lengths in a packed row.
        padding: tokens of it on the left.
        prefix: tokens that all see.
        new: tokens that come after a cache of the others.
    """

    name: ClassVar[str] = "masks"
    title: ClassVar[Words] = Words("Attention masks", "注意力掩码")
    claim: ClassVar[Words] = Words(
        "Training predicts all positions at once because a mask hides what comes later; bands, documents and "
        "prefixes are other masks on the same attention.",
        "掩码遮住后文，训练才能同时预测所有位置；带状、文档与前缀只是同一注意力上的其他掩码。",
    )
    tokens: int = 12
    window: int = 4
    documents: tuple[int, ...] = (5, 3, 4)
    padding: int = 3
    prefix: int = 5
    new: int = 4

    def data(self) -> Any:
        tokens, band = self.tokens, Scores(1.0, self.window)
        row = torch.arange(tokens)[None]
        padded = positions_of((torch.arange(tokens) >= self.padding)[None])
        causal, banded = seen_by(Causal(), row), seen_by(Causal(), row, band)
        keys = row.masked_fill(row < self.prefix, 0)
        restarted = torch.cat([torch.arange(length) for length in self.documents])[None]
        masks = {
            "causal": causal,
            "banded": banded,
            "alternating": causal.int() @ banded.int() > 0,
            "two bands": banded.int() @ banded.int() > 0,
            "packed": seen_by(Packed(self.documents), restarted),
            "padded": seen_by(Padded(), padded),
            "whole": seen_by(Whole(), row),
            "prefix": visible(row, keys, None)[0, 0],
            "cached": self._cached(),
        }
        return {"masks": {name: mask.int().tolist() for name, mask in masks.items()}, "sizes": self.plain()}

    def _cached(self) -> Tensor:
        """(new, tokens): the rest of a row whose beginning is in the cache."""
        block = {
            "norm": {"kind": "rms_norm"},
            "attention": {"num_heads": 1},
            "feed_forward": {"intermediate_size": 1},
        }
        sizes = {"vocab_size": 1, "hidden_size": self.tokens, "max_position_embeddings": self.tokens}
        cache = ContiguousCache(DecoderSpec.model_validate({**sizes, "layers": [block]}), 1, self.tokens)
        old = self.tokens - self.new
        _ask(cache, torch.arange(old)[None], Scores(1.0), self.tokens, 0)
        return _ask(cache, torch.arange(old, self.tokens)[None], Scores(1.0), self.tokens, old)

    def caption(self, data: Any) -> Words:
        sizes = data["sizes"]
        return Words(
            "Rows ask, columns are seen; filled is visible. Each mask is what attention does: with equal scores "
            "and values that are unit vectors, the output tells who was looked at. GPT-3 stacks dense and banded "
            f"layers: over two layers all is in reach again, while two bands of {sizes['window']} reach "
            f"{2 * sizes['window'] - 2} back. Padding sees all, so that no row is empty, and nothing real sees it. "
            "The prefix's keys stand at position 0, which is all that it takes.",
            "行是提问者，列是被看者；填色为可见。掩码由注意力自己给出：分数相等、值为单位向量时，输出就说明看了"
            f"谁。GPT-3 让稠密层与带状层交替：两层之后又全部可达，而两个宽 {sizes['window']} 的带只到 "
            f"{2 * sizes['window'] - 2} 之前。填充看得到全部（行不会为空），而真实词元都看不到它。前缀只需让它的键"
            "都站在位置 0。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        sizes = data["sizes"]
        words = {
            **sizes,
            "documents": ", ".join(map(str, sizes["documents"])),
            "old": sizes["tokens"] - sizes["new"],
        }
        return [
            field(
                say(*_TITLES[name]).format(**words),
                mask,
                low=0,
                high=1,
                across=say("keys", "键"),
                down=say("queries", "查询"),
                width=272,
                cell=18,
            )
            for name, mask in data["masks"].items()
        ]


def seen_by(context: AttentionContext, positions: Tensor, scores: Scores = Scores(1.0)) -> Tensor:  # noqa: B008
    """(T, T), True where the row's token looks at the column's, for positions (1, T)."""
    return _ask(context, positions, scores, positions.shape[1], 0)


def _ask(context: AttentionContext, positions: Tensor, scores: Scores, width: int, first: int) -> Tensor:
    """Queries of 0 give every visible key the same weight; values are unit vectors, from number `first` on."""
    length = positions.shape[1]
    nothing = torch.zeros(1, 1, length, width)
    values = torch.eye(width)[first : first + length].view(1, 1, length, width)
    context.begin(positions)
    seen: Tensor = context.attend(0, nothing, nothing, values, scores)[0, 0] > 0
    return seen
