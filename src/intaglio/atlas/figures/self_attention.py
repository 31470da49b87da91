"""Self-attention as matrices: X to Q, K, V, scores, weights and outputs of each head, and all heads through W_O.

The numbers are what the real part had in hand: a context that keeps what it is given stands where the fused kernel
stands otherwise, and what the part gives with each is compared.

Legend: T tokens, E features, H heads, D features of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from intaglio.atlas.charts import head
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.matrices import Matrix, in_a_row
from intaglio.atlas.svg import Canvas
from intaglio.parts.attention import Attention
from intaglio.parts.context import Scores, Whole
from intaglio.specs import AttentionSpec

__all__ = ["SelfAttention", "Written", "by_head", "head_panel", "randomize", "written_out"]

_WIDTH: Final = 400.0


@dataclass(frozen=True)
class SelfAttention(Figure):
    """See above.

    Attributes:
        tokens, size, heads: T, E and H.
        seed: of the input and the weights.
    """

    name: ClassVar[str] = "self-attention"
    title: ClassVar[Words] = Words("Self-attention as matrices", "自注意力写成矩阵")
    claim: ClassVar[Words] = Words(
        "softmax(QKᵀ/√d) V: every token scores every token. Several heads do so in slices of their own; their "
        "outputs stand side by side and go through W_O.",
        "softmax(QKᵀ/√d) V：每个词元给每个词元打分。几个头各在自己的一段特征里这样做，输出并排，再经过 W_O。",
    )
    tokens: int = 3
    size: int = 4
    heads: int = 2
    seed: int = 2

    @torch.no_grad()
    def data(self) -> Any:
        dice = torch.Generator().manual_seed(self.seed)
        spec = AttentionSpec(num_heads=self.heads, head_dim=self.size // self.heads, rope=None)
        part, x = Attention(spec, self.size, 0), torch.randn(1, self.tokens, self.size, generator=dice)
        randomize(part, dice)
        kept, fused = Written(), Whole()
        for context in (kept, fused):
            context.begin(torch.arange(self.tokens)[None])
        y = part(x, None, kept)
        return {
            "x": x[0].tolist(),
            "projections": {name: getattr(part, f"{name}_proj").weight.T.tolist() for name in "qkvo"},
            "scale": part.scores.scale,
            "heads": by_head(kept.parts),
            "y": y[0].tolist(),
            "apart": float((y - part(x, None, fused)).abs().max()),
        }

    def caption(self, data: Any) -> Words:
        heads, scale = len(data["heads"]), data["scale"]
        width = len(data["heads"][0]["query"][0])
        return Words(
            f"{len(data['x'])} tokens of {len(data['x'][0])} features, {heads} heads of {width}, random weights, no "
            f"mask; the stronger a cell, the larger its number. Scores are multiplied by {scale:.3f}, which is "
            f"1/√{width}; each row of weights adds up to 1. A head reads its own columns of Q, K and V, on one side "
            "of the line. The numbers were kept while our attention ran; with the fused kernel, which keeps none, "
            f"its output is the same (at most {data['apart']:.0e} apart).",
            f"{len(data['x'])} 个词元，各 {len(data['x'][0])} 个特征；{heads} 个头，各 {width} 个特征；随机权重，没有"
            f"掩码；格子越深，数越大。分数乘以 {scale:.3f}，即 1/√{width}；每行权重合计为 1。一个头只读 Q、K、V 中线的"
            "一侧、属于自己的列。数字是我们的注意力运行时留下的；换成不留任何东西的融合算子，输出相同（相差至多 "
            f"{data['apart']:.0e}）。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        heads = [head_panel(say(f"Head {n}", f"第 {n} 个头"), one, say) for n, one in enumerate(data["heads"], 1)]
        return [_projected(data, say), *heads, _joined(data, say)]


class Written(Whole):
    """Attention of all to all, written out.

    Attributes:
        parts: of the last call, see `written_out`.
    """

    parts: dict[str, Tensor]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor | int, scores: Scores) -> Tensor:
        assert isinstance(value, Tensor)
        self.parts = written_out(query, key, value, scores.scale)
        return self.parts["output"]


def written_out(query: Tensor, key: Tensor, value: Tensor, scale: float) -> dict[str, Tensor]:
    """Every step of softmax(Q K^T * scale) V, by name: (B, H, T, D), (B, H, S, D) twice, and what is made of them."""
    scores = query @ key.mT * scale
    weights = scores.softmax(dim=-1)
    return {
        "query": query,
        "key": key,
        "value": value,
        "scores": scores,
        "weights": weights,
        "output": weights @ value,
    }


def by_head(parts: dict[str, Tensor]) -> list[dict[str, Any]]:
    """Of one row, a head's own of each, as lists."""
    heads = parts["query"].shape[1]
    return [{name: part[0, head].tolist() for name, part in parts.items()} for head in range(heads)]


def randomize(part: nn.Module, dice: torch.Generator) -> None:
    """Matrices N(0, 0.8), so that weights are neither all equal nor all 0 and 1."""
    for parameter in part.parameters():
        if parameter.ndim >= 2:
            nn.init.normal_(parameter, 0.0, 0.8, generator=dice)


def head_panel(title: str, one: Any, say: Say, width: float = _WIDTH) -> Canvas:
    """From Q, K and V of a head to its output, in two products."""
    canvas = Canvas(width, 0)
    y = head(canvas, title) + 6
    key = Matrix("Kᵀ", list(zip(*one["key"], strict=True)))
    scores = Matrix(say("scores QKᵀ/√d", "分数 QKᵀ/√d"), one["scores"])
    y = in_a_row(canvas, 12, y, [Matrix("Q", one["query"]), "×", key, "=", scores]) + 24
    weights = Matrix(say("softmax: weights", "softmax：权重"), one["weights"])
    output = Matrix(say("output", "输出"), one["output"])
    canvas.height = in_a_row(canvas, 12, y, [weights, "×", Matrix("V", one["value"]), "=", output]) + 8
    return canvas


def _projected(data: Any, say: Say) -> Canvas:
    canvas = Canvas(_WIDTH, 0)
    y = head(canvas, say("Three maps: queries, keys, values", "三个映射：查询、键、值")) + 6
    splits = _splits(data)
    for name, part in (("q", "query"), ("k", "key"), ("v", "value")):
        made = Matrix(name.upper(), _beside(data["heads"], part), splits)
        weight = Matrix(f"W_{name.upper()}", data["projections"][name], splits)
        y = in_a_row(canvas, 10, y, [Matrix("X", data["x"]), "×", weight, "=", made]) + 16
    canvas.height = y
    return canvas


def _joined(data: Any, say: Say) -> Canvas:
    canvas = Canvas(_WIDTH, 0)
    y = head(canvas, say("Heads side by side, through W_O", "各头并排，经过 W_O")) + 6
    both = Matrix(say("heads", "各头的输出"), _beside(data["heads"], "output"), _splits(data))
    output = Matrix(say("output", "输出"), data["y"])
    canvas.height = in_a_row(canvas, 10, y, [both, "×", Matrix("W_O", data["projections"]["o"]), "=", output]) + 8
    return canvas


def _beside(heads: Sequence[Any], part: str) -> list[list[float]]:
    """A part of all heads side by side, (T, H D)."""
    return [[value for row in rows for value in row] for rows in zip(*(one[part] for one in heads), strict=True)]


def _splits(data: Any) -> list[int]:
    width = len(data["heads"][0]["query"][0])
    return [width * number for number in range(1, len(data["heads"]))]
