"""Cross-attention as matrices: queries of the target, keys and values of the source, and scores that are no square.

A small encoder-decoder runs; its first layer's cross-attention is watched. Who makes Q, K and V is asked, not told: a
token of the source is changed, then one of the target, and what moves is written down.

Legend: S tokens of the source, T of the target, E features, H heads, D features of a head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from intaglio.atlas.charts import head
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.figures.self_attention import by_head, head_panel, randomize, written_out
from intaglio.atlas.matrices import CELL, Matrix, in_a_row
from intaglio.atlas.svg import Canvas
from intaglio.models.encoder_decoder import EncoderDecoder
from intaglio.parts.context import Causal, Scores
from intaglio.parts.cross_attention import CrossAttention
from intaglio.parts.memory import Equal, KeysValues, Memory
from intaglio.specs import EncoderDecoderSpec

__all__ = ["CrossAttending", "watched_cross"]

_WIDTH: Final = 400.0
_VOCABULARY: Final = 12
_MOVED: Final = ("query", "key", "value")


@dataclass(frozen=True)
class CrossAttending(Figure):
    """See above.

    Attributes:
        source, target: tokens, S and T.
        size, heads: E and H.
        seed: of the weights and the tokens.
    """

    name: ClassVar[str] = "cross-attention"
    title: ClassVar[Words] = Words("Cross-attention: a rectangle", "交叉注意力：一个长方形")
    claim: ClassVar[Words] = Words(
        "In cross-attention the queries come from the decoder, the keys and values from the encoder: each token of "
        "the target scores each token of the source, and no mask hides any.",
        "交叉注意力的查询来自解码器，键和值来自编码器：目标的每个词元给源文的每个词元打分，没有掩码。",
    )
    source: int = 5
    target: int = 3
    size: int = 4
    heads: int = 2
    seed: int = 3

    @torch.no_grad()
    def data(self) -> Any:
        dice = torch.Generator().manual_seed(self.seed)
        model = EncoderDecoder(self._spec()).eval()
        randomize(model, dice)
        pair = [torch.randint(1, _VOCABULARY, (1, length), generator=dice) for length in (self.source, self.target)]
        part, given, parts, fused = watched_cross(model, *pair)
        return {
            "decoder": given["target"][0].tolist(),
            "encoder": given["source"][0].tolist(),
            "projections": {name: getattr(part, f"{name}_proj").weight.T.tolist() for name in "qkv"},
            "heads": by_head(parts),
            "moved": {side: self._moved(model, pair, place) for place, side in enumerate(("source", "target"))},
            "apart": float((fused - parts["output"]).abs().max()),
        }

    def _spec(self) -> EncoderDecoderSpec:
        attention, feed_forward = {"num_heads": self.heads}, {"intermediate_size": 2 * self.size}
        layer = {
            "norm": {"kind": "layer_norm"},
            "placement": "post",
            "attention": attention,
            "feed_forward": feed_forward,
        }
        sizes = {"vocab_size": _VOCABULARY, "hidden_size": self.size, "max_position_embeddings": 16}
        sides = {"encoder": {"layers": [layer]}, "decoder": {"layers": [layer]}, "start_token_id": 0}
        return EncoderDecoderSpec.model_validate({**sizes, **sides})

    def _moved(self, model: EncoderDecoder, pair: Sequence[Tensor], place: int) -> dict[str, float]:
        """How far Q, K and V move when the first token of one side becomes another."""
        other = [ids.clone() for ids in pair]
        other[place][0, 0] = other[place][0, 0] % (_VOCABULARY - 1) + 1
        plain, changed = watched_cross(model, *pair)[2], watched_cross(model, *other)[2]
        return {name: float((changed[name] - plain[name]).abs().max()) for name in _MOVED}

    def caption(self, data: Any) -> Words:
        by_source, by_target = data["moved"]["source"], data["moved"]["target"]
        rows, columns = len(data["decoder"]), len(data["encoder"])
        told = [f"{by_source[name]:.2g}" for name in _MOVED], [f"{by_target[name]:.2g}" for name in _MOVED]
        return Words(
            f"The first decoder layer of a small encoder-decoder with random weights, its first head: {rows} tokens "
            f"of the target against {columns} of the source. Another first token of the source moves Q, K and V by "
            f"{', '.join(told[0])}; another of the target by {', '.join(told[1])}: each side makes its own. The "
            f"numbers were kept while the model ran; its fused kernel gives the same (at most {data['apart']:.0e} "
            "apart).",
            f"随机权重的小编码器-解码器，解码器第一层的第一个头：目标 {rows} 个词元对源文 {columns} 个。换掉源文的第一"
            f"个词元，Q、K、V 各移动 {'、'.join(told[0])}；换掉目标的，移动 {'、'.join(told[1])}：各由一边产生。数字是"
            f"模型运行时留下的；融合算子的结果相同（相差至多 {data['apart']:.0e}）。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        return [
            _projected(data, say),
            head_panel(say("Head 1: scores of T by S", "第 1 个头：T × S 的分数"), data["heads"][0], say),
        ]


class _Watching(Equal):
    """Reads the memory as always, and keeps what every layer had in hand, and what it gave."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self.states = memory.padded()
        self.parts: list[dict[str, Tensor]] = []
        self.given: list[Tensor] = []

    def attend(self, layer: int, query: Tensor, keys_values: KeysValues, scores: Scores) -> Tensor:
        self.parts.append(written_out(query, *keys_values(self.states), scores.scale))
        self.given.append(super().attend(layer, query, keys_values, scores))
        return self.given[-1]


def watched_cross(
    model: EncoderDecoder, source: Tensor, target: Tensor
) -> tuple[CrossAttention, dict[str, Tensor], dict[str, Tensor], Tensor]:
    """The first layer's cross-attention while the model reads (1, S) and (1, T).

    Returns:
        the part; what it reads of the `target` (1, T, E) and of the `source` (1, S, E); the steps written out, see
        `written_out`; and what the fused kernel gave, (1, H, T, D).
    """
    part = model.decoder.layers[0].cross_attention
    assert isinstance(part, CrossAttention)
    read: list[Tensor] = []
    hook = part.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    watching = _Watching(model.encode(source))
    model.advance(target, torch.arange(target.shape[1])[None], Causal(), watching)
    hook.remove()
    return part, {"target": read[0], "source": watching.states}, watching.parts[0], watching.given[0]


def _projected(data: Any, say: Say) -> Canvas:
    """The first head's maps: one from the decoder, two from the encoder."""
    canvas = Canvas(_WIDTH, 0)
    y = head(canvas, say("Q of the decoder, K and V of the encoder", "Q 来自解码器，K、V 来自编码器")) + 6
    first = data["heads"][0]
    sides = {
        "q": (say("decoder", "解码器"), "decoder", "query"),
        "k": (say("encoder", "编码器"), "encoder", "key"),
        "v": (say("encoder", "编码器"), "encoder", "value"),
    }
    for name, (words, side, part) in sides.items():
        weight = [row[: len(first["query"][0])] for row in data["projections"][name]]
        read, made = Matrix(words, data[side]), Matrix(name.upper(), first[part])
        y = in_a_row(canvas, 12 + CELL[0], y, [read, "×", Matrix(f"W_{name.upper()}", weight), "=", made]) + 16
    canvas.height = y
    return canvas
