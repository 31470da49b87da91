"""A Transformer's spec as a picture: input, layers with their residual paths and norms, output.

One pen goes down the page; what a spec says decides what it meets. A kind of layer is drawn once, however often it
comes; the line beside its frame says how often.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from intaglio.atlas.figure import Say
from intaglio.atlas.svg import Canvas, wrapped
from intaglio.lineage.decoder_words import attention_word, feed_forward_word, norm_word
from intaglio.specs import (
    AttentionSpec,
    BlockSpec,
    CycleSpec,
    DecoderSpec,
    EncoderDecoderSpec,
    LatentAttentionSpec,
    StackSpec,
)

__all__ = ["Pen", "decoder_diagram", "encoder_decoder_diagram"]

_BOX: Final = 24.0
_GAP: Final = 15.0
_HALF: Final = 102.0  # of a box's width
_ROAD: Final = 128.0  # from the middle to the residual path
_SMALL: Final = 11.0


class Pen:
    """Draws a column of boxes from the top down, an arrow between each and the next.

    Args:
        canvas: to draw on.
        x: the middle of the column.
        y: where it begins.
    """

    def __init__(self, canvas: Canvas, x: float, y: float) -> None:
        self.canvas, self.x, self.y = canvas, x, y
        self._begun = False

    def box(self, words: str, below: str = "") -> None:
        """A box with one line, or with a second, smaller one."""
        self.step()
        small = wrapped(below, 2 * _HALF - 10, _SMALL) if below else []
        height = _BOX + 14 * len(small)
        self.canvas.rect(self.x - _HALF, self.y, 2 * _HALF, height, "box", round_by=4)
        self.canvas.text(self.x, self.y + 16, words, anchor="middle")
        for place, line in enumerate(small):
            self.canvas.text(self.x, self.y + 31 + 14 * place, line, "faint", size=_SMALL, anchor="middle")
        self.y += height
        self._begun = True

    def step(self) -> None:
        """The arrow to what comes next."""
        if self._begun:
            self.canvas.arrow([(self.x, self.y), (self.x, self.y + _GAP)])
            self.y += _GAP

    def plain(self, length: float = 8) -> None:
        """A piece of the way without a head."""
        self.canvas.arrow([(self.x, self.y), (self.x, self.y + length)], head=False)
        self.y += length

    def sum(self, start: float, side: float = 1.0) -> None:
        """A sum with what left the way at `start`, along the residual path."""
        self.step()
        self.y += 9
        road = self.x + side * _ROAD
        self.canvas.arrow([(self.x, start), (road, start), (road, self.y), (self.x + side * 10, self.y)])
        self.canvas.parts.append(f'<circle class="box" cx="{self.x:.1f}" cy="{self.y:.1f}" r="9"/>')
        x, y = self.x, self.y
        self.canvas.path(f"M{x - 5:.1f} {y:.1f}h10M{x:.1f} {y - 5:.1f}v10", "arrow")
        self.y += 9


def decoder_diagram(spec: DecoderSpec, say: Say, width: float = 400) -> Canvas:
    """A decoder from its tokens to the next one's probabilities."""
    canvas = Canvas(width, 0)
    pen = Pen(canvas, width / 2 - 30, 8)
    _input(pen, spec, say("tokens", "词元"), say)
    _layers(pen, spec.layers, say)
    _output(pen, spec, say)
    canvas.height = pen.y + 8
    return canvas


def encoder_decoder_diagram(spec: EncoderDecoderSpec, say: Say, width: float = 640) -> Canvas:
    """Both sides, and the memory that goes from one to every layer of the other."""
    canvas = Canvas(width, 0)
    reader = Pen(canvas, width / 4 - 16, 8)
    _input(reader, spec, say("source", "源文"), say)
    _stack(reader, spec.encoder, say)
    writer = Pen(canvas, width * 3 / 4 - 10, 8)
    _input(writer, spec, say("target so far", "已生成的目标"), say)
    looks: list[float] = []
    _stack(writer, spec.decoder, say, looks)
    _output(writer, spec, say)
    road = width / 2 - 5
    left = writer.x - _HALF
    canvas.arrow([(reader.x, reader.y), (reader.x, reader.y + 12), (road, reader.y + 12), (road, looks[0])], False)
    for y in looks:
        canvas.arrow([(road, y), (left, y)])
    canvas.height = max(reader.y + 14, writer.y) + 8
    return canvas


def _input(pen: Pen, spec: DecoderSpec | EncoderDecoderSpec, what: str, say: Say) -> None:
    pen.box(what)
    scale = f" × {spec.embedding_scale:.4g}" if spec.embedding_scale else ""
    pen.box(say("embedding", "词嵌入") + scale, f"{spec.vocab_size:,} × {spec.hidden_size:,}")
    if spec.positions:
        kind = say(*_POSITIONS[spec.positions.kind])
        pen.box(say("+ positions", "＋位置"), kind)


_POSITIONS: Final = {
    "learned": ("learned table", "可学习的位置表"),
    "sinusoidal": ("sinusoids, fixed", "固定的正弦波"),
}


def _stack(pen: Pen, stack: StackSpec, say: Say, looks: list[float] | None = None) -> None:
    _layers(pen, stack.layers, say, looks)
    if stack.final_norm:
        pen.box(norm_word(stack.final_norm))


def _output(pen: Pen, spec: DecoderSpec | EncoderDecoderSpec, say: Say) -> None:
    if isinstance(spec, DecoderSpec) and spec.final_norm:
        pen.box(norm_word(spec.final_norm))
    tied = say("is the embedding matrix", "即词嵌入矩阵") if spec.tie_embeddings else say("its own", "独立的矩阵")
    pen.box(say("output matrix", "输出矩阵"), tied)
    if isinstance(spec, DecoderSpec) and spec.logit_softcap:
        pen.box(say(f"capped at {spec.logit_softcap:g}", f"截断于 {spec.logit_softcap:g}"))
    pen.box(say("softmax: next token", "softmax：下一个词元"))


def _layers(pen: Pen, layers: Sequence[BlockSpec | CycleSpec], say: Say, looks: list[float] | None = None) -> None:
    """Every kind of layer once; a kind that came before is not drawn again."""
    drawn: list[BlockSpec] = []
    for entry in layers:
        blocks = entry.pattern if isinstance(entry, CycleSpec) else (entry,)
        for block, _ in groupby(blocks):
            times = _times(entry, block, say)
            kind = block.updated(repeat=1)
            if kind not in drawn:
                drawn.append(kind)
                _layer(pen, block, times, say, looks)


def _times(entry: BlockSpec | CycleSpec, block: BlockSpec, say: Say) -> str:
    if isinstance(entry, BlockSpec):
        return f"× {entry.repeat}"
    return say(f"{block.repeat} in turn, × {entry.repeat}", f"轮流 {block.repeat} 层，× {entry.repeat}")


def _layer(pen: Pen, block: BlockSpec, times: str, say: Say, looks: list[float] | None) -> None:
    pen.step()
    top = pen.y
    pen.y += 22
    pen.canvas.text(pen.x - _HALF - 26, top + 15, times, "strong")
    pen.canvas.arrow([(pen.x, top), (pen.x, pen.y)], head=False)
    if block.placement == "parallel":
        _parallel(pen, block, say)
    else:
        _sublayer(pen, block, attention_word(block.attention), _attention_details(block, say))
        if looks is not None:
            looks.append(_cross(pen, block, say))
        _sublayer(pen, block, feed_forward_word(block.feed_forward), _feed_forward_details(block, say))
    pen.plain()
    canvas = pen.canvas
    left, right = pen.x - _HALF - 36, pen.x + _ROAD + 12
    canvas.rect(left, top, right - left, pen.y - top, "grid", round_by=10)


def _cross(pen: Pen, block: BlockSpec, say: Say) -> float:
    """Attention to the source; where its box is."""
    return _sublayer(
        pen, block, say("cross-attention", "交叉注意力"), say("queries here, K and V there", "此处的Q，源文的K、V")
    )


def _sublayer(pen: Pen, block: BlockSpec, words: str, below: str) -> float:
    """One of the two or three: its norm where the placement puts it, and the sum; returns the y of its box."""
    norm = norm_word(block.norm)
    pen.plain()
    start = pen.y - 4
    if "before" in block.norm_places:
        pen.box(norm)
    pen.box(words, below)
    middle = pen.y - (_BOX + 14) / 2
    if "after" in block.norm_places:
        pen.box(norm)
    pen.sum(start)
    if "outside" in block.norm_places:
        pen.box(norm)
    return middle


def _parallel(pen: Pen, block: BlockSpec, say: Say) -> None:
    start = pen.y
    pen.box(norm_word(block.norm))
    pen.box(f"{attention_word(block.attention)} + {feed_forward_word(block.feed_forward)}", say("side by side", "并行"))
    pen.sum(start)


def _attention_details(block: BlockSpec, say: Say) -> str:
    attention = block.attention
    if isinstance(attention, LatentAttentionSpec):
        latent = f"{attention.kv_lora_rank} + {attention.qk_rope_head_dim}"
        return say(f"latent of {latent}, rotary", f"潜向量 {latent}，旋转位置")
    words = [say(f"heads of {attention.width}", f"每头 {attention.width} 维")]
    words += [say("rotary", "旋转位置")] if attention.rope else []
    words += [say(f"window {attention.window}", f"窗口 {attention.window}")] if attention.window else []
    return say(", ", "，").join([*words, *_extras(attention, say)])


def _extras(attention: AttentionSpec, say: Say) -> list[str]:
    bias = "".join(name for name in "qkvo" if getattr(attention.bias, name))
    words = [say("QK-norm", "QK 归一化")] if attention.qk_norm else []
    words += [say(f"bias on {bias}", f"偏置 {bias}")] if bias else []
    return words + (
        [say(f"capped at {attention.softcap:g}", f"截断于 {attention.softcap:g}")] if attention.softcap else []
    )


def _feed_forward_details(block: BlockSpec, say: Say) -> str:
    spec = block.feed_forward
    if spec.kind == "moe":
        size = f"{spec.num_experts_per_tok} / {spec.num_experts} × {spec.expert.intermediate_size:,}"
        shared = f" + {spec.shared.intermediate_size:,}" if spec.shared else ""
        return say(f"experts {size}{shared}", f"专家 {size}{shared}")
    bias = say(", with bias", "，有偏置") if spec.bias else ""
    return say(f"{spec.intermediate_size:,} wide{bias}", f"宽 {spec.intermediate_size:,}{bias}")
