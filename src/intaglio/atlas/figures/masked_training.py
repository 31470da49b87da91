"""Masked training: one sample for each prefix against one pass under the causal mask, which predict the same.

A small model of bytes reads a text in both ways; predictions, loss and gradients are compared. The mask is what the
code's own attention shows when it is asked (see `masks`).

Legend: T bytes, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.atlas.charts import head
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.figures.masks import seen_by
from intaglio.atlas.small_runs import code_bytes, fit, fresh, small_spec
from intaglio.atlas.svg import Canvas
from intaglio.models.decoder import Decoder
from intaglio.parts.context import Causal

__all__ = ["MaskedTraining", "by_prefix", "gradients"]

_WIDTH: Final = 400.0
_CELL: Final = 24.0
_SHOWN: Final = {" ": "␣", "\n": "↵"}


@dataclass(frozen=True)
class MaskedTraining(Figure):
    """See above.

    Attributes:
        width, steps, batch, window: of the model and its training.
        text: that is read.
    """

    name: ClassVar[str] = "masked-training"
    title: ClassVar[Words] = Words("Training under a mask: all prefixes at once", "掩码训练：所有前缀一次算完")
    claim: ClassVar[Words] = Words(
        "Training predicts all positions at once under the mask: equal to one sample for each prefix, but in parallel.",
        "训练在掩码下同时预测所有位置：等于每个前缀各作一个样本，但是并行的。",
    )
    width: int = 48
    steps: int = 200
    batch: int = 16
    window: int = 48
    text: str = "return"

    def data(self) -> Any:
        feed_forward = {"intermediate_size": 2 * self.width, "activation": "silu", "gated": True}
        model = fresh(small_spec(self.width, self.window, feed_forward))
        for _ in fit(model, code_bytes(), steps=self.steps, batch=self.batch, window=self.window):
            pass
        ids = torch.tensor([list(self.text.encode())])
        with torch.no_grad():
            one, many = model(ids)[0], by_prefix(model, ids)
        each, together = gradients(model, ids, by_prefix), gradients(model, ids, lambda model, ids: model(ids)[0])
        return {
            "text": list(self.text),
            "mask": seen_by(Causal(), torch.arange(len(self.text))[None]).int().tolist(),
            "masked": _predicted(one),
            "prefixes": _predicted(many),
            "apart": float((one.softmax(dim=-1) - many.softmax(dim=-1)).abs().max()),
            "gradient_apart": float((each - together).abs().max()),
            "gradient": float(together.abs().max()),
        }

    def caption(self, data: Any) -> Words:
        length = len(data["text"])
        places = length * (length + 1) // 2
        return Words(
            f"A small model of bytes after {self.steps} steps reads “{''.join(data['text'])}” in two ways, and says "
            f"after each byte what comes next, and how likely that is. {length} prefixes are {length} passes over "
            f"{places} bytes; under the mask it is one pass over {length}. Of all {length} × 256 probabilities none "
            f"differs by more than {data['apart']:.0e}, and of the gradients of the summed loss none by more than "
            f"{data['gradient_apart']:.0e}, where the largest is {data['gradient']:.2g}: rounding.",
            f"一个小字节模型训练 {self.steps} 步后，用两种方式读“{''.join(data['text'])}”，在每个字节之后说出下一个是"
            f"什么、概率多大。{length} 个前缀要 {length} 次前向，读 {places} 个字节；在掩码下只要一次，读 {length} "
            f"个。{length} × 256 个概率中，相差最多的也不超过 {data['apart']:.0e}；各步损失之和的梯度相差至多 "
            f"{data['gradient_apart']:.0e}，而最大的梯度是 {data['gradient']:.2g}：只是舍入。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        return [_prefixes(data, say), _masked(data, say)]


def by_prefix(model: Decoder, ids: Tensor) -> Tensor:
    """Logits (T, V) of (1, T): each prefix read by itself, and its last place kept."""
    return torch.stack([model(ids[:, :end])[0, -1] for end in range(1, ids.shape[1] + 1)])


def gradients(model: Decoder, ids: Tensor, read: Any) -> Tensor:
    """Of the loss of all next bytes within (1, T), summed, for every parameter, end to end.

    Args:
        read: from the model and ids (1, T) to logits (T, V).
    """
    loss = F.cross_entropy(read(model, ids)[:-1], ids[0, 1:], reduction="sum")
    return torch.cat([one.flatten() for one in torch.autograd.grad(loss, [*model.parameters()])])


def _predicted(logits: Tensor) -> list[tuple[str, float]]:
    """The likeliest byte of each place (T, V), and its probability."""
    likely, best = logits.softmax(dim=-1).max(dim=-1)
    return list(zip(map(_letter, best.tolist()), likely.tolist(), strict=True))


def _letter(byte: int) -> str:
    letter = chr(byte)
    return _SHOWN.get(letter, letter if 32 < byte < 127 else "·")


def _prefixes(data: Any, say: Say) -> Canvas:
    canvas, top, left = _begun(say("One sample for each prefix", "每个前缀一个样本"))
    canvas.text(left, top + 14, say("what is read", "读到的"), "faint", size=11)
    for row in range(len(data["text"])):
        for column in range(row + 1):
            x, y = left + _CELL * column, top + 24 + _CELL * row
            canvas.rect(x, y + 1, _CELL - 2, _CELL - 2, "box", round_by=3)
            canvas.text(x + _CELL / 2 - 1, y + 16, data["text"][column], anchor="middle")
    canvas.height = _answers(canvas, data, data["prefixes"], top, left, say)
    return canvas


def _masked(data: Any, say: Say) -> Canvas:
    canvas, top, left = _begun(say("One pass under the mask", "掩码下的一次前向"))
    for column, letter in enumerate(data["text"]):
        canvas.text(left + _CELL * (column + 0.5) - 1, top + 14, letter, anchor="middle")
    for row, (letter, seen) in enumerate(zip(data["text"], data["mask"], strict=True)):
        y = top + 24 + _CELL * row
        canvas.text(left - 10, y + 16, letter, anchor="end")
        for column, visible in enumerate(seen):
            look = "b1" if visible else "grid"
            canvas.rect(left + _CELL * column, y + 1, _CELL - 2, _CELL - 2, look)
    canvas.height = _answers(canvas, data, data["masked"], top, left, say)
    return canvas


def _begun(title: str) -> tuple[Canvas, float, float]:
    canvas = Canvas(_WIDTH, 0)
    return canvas, head(canvas, title) + 6, 36.0


def _answers(canvas: Canvas, data: Any, predicted: Any, top: float, left: float, say: Say) -> float:
    """Behind each row what is said to come next; returns the y under them."""
    x = left + _CELL * len(data["text"]) + 44
    canvas.text(x - 10, top + 14, say("what comes next", "下一个"), "faint", size=11)
    for row, (letter, likely) in enumerate(predicted):
        y = top + 24 + _CELL * row + 12
        canvas.arrow([(x - 38, y), (x - 14, y)])
        canvas.text(x, y + 4, letter, "strong", anchor="middle")
        canvas.text(x + 16, y + 4, f"{likely:.4f}", size=11)
    return top + 24 + _CELL * len(predicted) + 8
