"""The four terms of a score with added positions, (e + PE)^T A (e + PE), measured in a small trained model.

In the first layer of a pre-norm model the queries and keys are linear in e + PE but for the norm's divisor, which is
one number for each token; so a score falls into content with content, content with position, position with content,
and position with position. Only the last could know the distance by itself, and A = Wq^T Wk is learned: it need not.

Legend: N windows, T tokens, E features, H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from intaglio.atlas.charts import columns, field
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.small_runs import code_bytes, fit, fresh, held_out_bytes, small_spec
from intaglio.atlas.svg import Canvas

__all__ = ["FourTerms", "by_distance", "terms_of"]

_TERMS: Final = {
    "content · content": Words("e A e", "e A e"),
    "content · position": Words("e A PE", "e A PE"),
    "position · content": Words("PE A e", "PE A e"),
    "position · position": Words("PE A PE", "PE A PE"),
}


@dataclass(frozen=True)
class FourTerms(Figure):
    """See above.

    Attributes:
        width: of the model.
        steps, batch, window: of its training.
        windows: that are read.
    """

    name: ClassVar[str] = "four-terms"
    title: ClassVar[Words] = Words("Four terms, of which one knows the distance", "四项之中，只有一项知道距离")
    claim: ClassVar[Words] = Words(
        "Sinusoids carry the relative position in their inner product, but (e + PE)^T A (e + PE) has four terms, "
        "and only one shows it, through a learned A that need not keep it.",
        "正弦波的内积含有相对位置，但 (e + PE)^T A (e + PE) 有四项，只有一项体现它，而且要经过学到的 A，A 不必保留它。",
    )
    width: int = 48
    steps: int = 400
    batch: int = 16
    window: int = 64
    windows: int = 24

    def data(self) -> Any:
        feed_forward = {"intermediate_size": 2 * self.width, "activation": "silu", "gated": True}
        model = fresh(small_spec(self.width, self.window, feed_forward, positions={"kind": "sinusoidal"}))
        for _ in fit(model, code_bytes(), steps=self.steps, batch=self.batch, window=self.window):
            pass
        ids = held_out_bytes()[: self.windows * self.window].view(-1, self.window)
        terms = terms_of(model, ids)
        seen = torch.ones(self.window, self.window, dtype=torch.bool).tril()
        spread = torch.stack([term[..., seen].var(dim=-1).mean(dim=(0, 1)) for term in terms.values()])
        position = terms["position · position"].mean(dim=0)  # (H, T, T)
        plain = model.positions(torch.arange(self.window)[None])[0]  # type: ignore[misc]
        return {
            "shares": dict(zip(terms, (spread / spread.sum()).tolist(), strict=True)),
            "field": position[0].tolist(),
            "heads": [by_distance(one) for one in position],
            "identity": by_distance(plain @ plain.T),
        }

    def caption(self, data: Any) -> Words:
        shares = data["shares"]
        numbers = ", ".join(f"{_TERMS[name].en} {share:.0%}" for name, share in shares.items())
        told = "，".join(f"{_TERMS[name].zh} {share:.0%}" for name, share in shares.items())
        kept = f"{min(data['heads']):.0%}", f"{max(data['heads']):.0%}"
        return Words(
            f"The first layer of a small model of bytes after {self.steps} steps, reading held-out text. Of the "
            f"scores' spread the terms make {numbers}. How far the term of positions alone hangs on the distance: "
            f"the plain inner product of sinusoids entirely ({data['identity']:.0%} of its variance), through the "
            f"learned A {kept[0]} to {kept[1]}, head by head. One seed.",
            f"一个小字节模型训练 {self.steps} 步后的第一层，读留出文本。分数的变化中各项占：{told}。纯位置项有多少"
            f"取决于距离：正弦波的普通内积完全取决于它（方差的 {data['identity']:.0%}），经过学到的 A 之后各头为 "
            f"{kept[0]} 到 {kept[1]}。单个种子。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        shares = {say(*_TERMS[name]): {"": 100 * share} for name, share in data["shares"].items()}
        kept = {say(f"head {number}", f"第 {number} 头"): {"": 100 * one} for number, one in enumerate(data["heads"])}
        kept[say("without A", "没有 A")] = {"": 100 * data["identity"]}
        return [
            columns(say("Share of the scores' spread", "占分数变化的比例"), shares, "%", lambda value: f"{value:.0f}"),
            field(
                say("PE A PE of head 0: query by key", "第 0 头的 PE A PE：查询 × 键"),
                data["field"],
                across=say("key's position", "键的位置"),
                down=say("query's position", "查询的位置"),
                tall=5,
            ),
            columns(
                say("Variance of PE A PE that distance explains", "距离所解释的 PE A PE 方差"),
                kept,
                "%",
                lambda value: f"{value:.0f}",
            ),
        ]


@torch.no_grad()
def terms_of(model: Any, ids: Tensor) -> dict[str, Tensor]:
    """The scores of the first layer by their terms, each (N, H, T, T): query by key; they add up to the scores."""
    block = model.layers[0]
    attention, norm = block.attention, block.attention_norm.before
    content = model.embed_tokens(ids)  # (N, T, E)
    place = model.positions(torch.arange(ids.shape[1])[None]).expand_as(content)
    size = ((content + place).square().mean(dim=-1, keepdim=True) + norm.eps).sqrt()  # (N, T, 1)
    parts = {"content": content / size * norm.weight, "position": place / size * norm.weight}
    queries = {name: attention.split(attention.q_proj(part)) for name, part in parts.items()}
    keys = {name: attention.split(attention.k_proj(part)) for name, part in parts.items()}
    scale = attention.scores.scale
    return {f"{q} · {k}": queries[q] @ keys[k].mT * scale for q in parts for k in parts}


def by_distance(scores: Tensor) -> float:
    """Of the variance of scores (T, T) over the pairs that causal attention sees, what their distance explains."""
    length = len(scores)
    row, column = torch.tril_indices(length, length)
    values, apart = scores[row, column].double(), row - column
    counts = torch.bincount(apart)
    means = torch.bincount(apart, weights=values) / counts
    left = (values - means[apart]).square().sum() / (values - values.mean()).square().sum()
    return float(1 - left)
