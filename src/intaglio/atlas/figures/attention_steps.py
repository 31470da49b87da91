"""One step of a recurrent decoder with attention, in its four parts: score, softmax, weighted sum, fuse.

A small model that writes words backwards is asked for one; at one of its steps the attention is watched: what went
into it and came out is what `parts.scoring` had in hand. The scores are its own function's, called once more.

Legend: S letters of the source, H features of a state, M features of an encoder's output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor

from intaglio.atlas.charts import head
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.small_words import START, ids_of, learn, letters_of, reversed_to_end, words_model
from intaglio.atlas.svg import Canvas
from intaglio.atlas.wiring import bars
from intaglio.models.seq2seq import Seq2Seq
from intaglio.parts.scoring import Attention, blend

__all__ = ["AttentionSteps", "watched"]

_WIDTH: Final = 400.0
_THIN: Final = 4.0
_COLUMNS: Final = 1.0  # of a feature whose column is as high as there is room
_SHOWN: Final = 4  # letters with their probabilities


@dataclass(frozen=True)
class AttentionSteps(Figure):
    """See above.

    Attributes:
        hidden_size: of the model.
        steps, batch, longest: of its training.
        word: that it writes backwards.
        step: that is drawn, from 0 on.
    """

    name: ClassVar[str] = "attention-steps"
    title: ClassVar[Words] = Words("Attention in four steps", "注意力的四步")
    claim: ClassVar[Words] = Words(
        "At each step of the decoder: score its state against every encoder output, softmax to weights, the weighted "
        "sum as the context, and fuse by putting it beside the current state.",
        "解码器的每一步：用当前状态给每个编码器输出打分，softmax 成权重，加权和作为上下文，再与当前状态拼在一起。",
    )
    hidden_size: int = 20
    steps: int = 400
    batch: int = 48
    longest: int = 8
    word: str = "atlas"
    step: int = 2

    def data(self) -> Any:
        fresh = words_model(self.hidden_size, attention={"score": "additive", "fusion": "after"})
        model = learn(fresh, reversed_to_end, steps=self.steps, batch=self.batch, longest=self.longest)
        return {"word": list(self.word), "step": self.step, **watched(model, ids_of(self.word), self.step)}

    def caption(self, data: Any) -> Words:
        weights, word = data["weights"], data["word"]
        best = max(range(len(weights)), key=weights.__getitem__)
        (letter, likely), *_ = data["likeliest"]
        written = "".join(data["written"])
        return Words(
            f"Step {data['step'] + 1} of a small GRU model with additive scores that writes “{''.join(word)}” "
            f"backwards; so far it has written “{written}”. The scores lie between {min(data['scores']):.1f} and "
            f"{max(data['scores']):.1f}; softmax gives {weights[best]:.0%} to “{word[best]}”, place {best + 1}, and "
            f"the weights add up to {sum(weights):.2f}. The sum of the encoder's outputs by these weights is the "
            f"context c; beside the decoder's state s it goes through one matrix and a softmax, which says “{letter}” "
            f"with {likely:.0%}. Columns up are positive. One seed.",
            f"一个加性打分的小 GRU 模型把“{''.join(word)}”倒着写的第 {data['step'] + 1} 步；已写出“{written}”。分数在 "
            f"{min(data['scores']):.1f} 与 {max(data['scores']):.1f} 之间；softmax 把 {weights[best]:.0%} 给了第 "
            f"{best + 1} 处的“{word[best]}”，权重合计 {sum(weights):.2f}。编码器输出按权重求和就是上下文 c；它与解码器"
            f"状态 s 并排，经过一个矩阵和 softmax，以 {likely:.0%} 说出“{letter}”。柱子向上为正。单个种子。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        return [_scores(data, say), _weights(data, say), _sum(data, say), _fused(data, say)]


@torch.no_grad()
def watched(model: Seq2Seq, source: Tensor, step: int) -> dict[str, Any]:
    """What attention had in hand at a step of writing (1, S) freely; all vectors as lists.

    Returns:
        `written` before it, `query` (H), `states` (S, M), `scores` and `weights` (S), `context` (M), `fused` (H + M),
        and the `likeliest` letters with their probabilities.
    """
    assert isinstance(model.attention, Attention)
    memory = model.encode(source)
    ids, state, written = torch.full((1,), START), memory.state, []
    seen: list[tuple[Any, Any]] = []
    hook = model.attention.register_forward_hook(lambda _, given, made: seen.append((given, made)))
    for _ in range(step + 1):
        logits, state, _ = model.step(ids, state, memory)
        ids = logits.argmax(dim=-1)
        written += letters_of(ids)
    hook.remove()
    (query, looked, _), (fused, weights) = seen[-1]
    likely, best = logits[0].softmax(dim=-1).topk(_SHOWN)
    return {
        "written": written[:-1],
        "query": query[0, 0].tolist(),
        "states": looked.states[0].tolist(),
        "scores": model.attention.scoring.score(query, looked.keys)[0, 0].tolist(),
        "weights": weights[0, 0].tolist(),
        "context": blend(weights, looked.states)[0, 0].tolist(),
        "fused": fused[0, 0].tolist(),
        "likeliest": list(zip(letters_of(best), likely.tolist(), strict=True)),
    }


def _scores(data: Any, say: Say) -> Canvas:
    canvas = Canvas(_WIDTH, 0)
    top = head(canvas, say("1. Score: s against every output h", "1. 打分：s 对每个输出 h")) + 24
    canvas.text(12, top + 4, "s")
    _vector(canvas, 32, top, data["query"])
    most = max(abs(score) for score in data["scores"])
    canvas.height = _by_letter(canvas, data["word"], data["scores"], top + 46, most, signed=True)
    return canvas


def _weights(data: Any, say: Say) -> Canvas:
    canvas = Canvas(_WIDTH, 0)
    top = head(canvas, say("2. Softmax: scores to weights", "2. softmax：分数变成权重")) + 40
    canvas.text(12, top - 16, say("positive, and together 1", "都为正，合计为 1"), "faint", size=11)
    canvas.height = _by_letter(canvas, data["word"], data["weights"], top + 30, 1.0, signed=False)
    return canvas


def _by_letter(
    canvas: Canvas, word: Sequence[str], values: Sequence[float], y: float, most: float, *, signed: bool
) -> float:
    """A column and a number for each letter of the source; returns the y under them."""
    across = (_WIDTH - 80) / max(len(word) - 1, 1)
    for place, (letter, value) in enumerate(zip(word, values, strict=True)):
        x = 40 + across * place
        bars(canvas, x - 13, y, [value], most=most, thick=26, tall=60, signed=signed)
        canvas.text(x, y + 48, f"{value:.2f}", size=11, anchor="middle")
        canvas.text(x, y + 66, letter, anchor="middle")
    return y + 76


def _sum(data: Any, say: Say) -> Canvas:
    canvas = Canvas(_WIDTH, 0)
    top = head(canvas, say("3. Weighted sum: the context", "3. 加权和：上下文")) + 8
    left, right = 30.0, 232.0
    canvas.text(left, top + 8, say("outputs h", "输出 h"), "faint", size=11)
    canvas.text(right, top + 8, say("times their weight", "乘以权重"), "faint", size=11)
    for place, (letter, state, weight) in enumerate(zip(data["word"], data["states"], data["weights"], strict=True)):
        y = top + 32 + 34 * place
        canvas.text(12, y + 4, letter)
        _vector(canvas, left, y, state)
        canvas.text(right - 12, y + 4, f"× {weight:.2f}", size=11, anchor="end")
        _vector(canvas, right, y, [weight * value for value in state])
    y = top + 40 + 34 * len(data["word"])
    canvas.line(right, y - 18, right + _length(data["context"]), y - 18, "axis")
    canvas.text(right - 12, y + 8, say("sum: c", "和：c"), size=11, anchor="end")
    _vector(canvas, right, y + 4, data["context"])
    canvas.height = y + 30
    return canvas


def _fused(data: Any, say: Say) -> Canvas:
    canvas = Canvas(_WIDTH, 0)
    top = head(canvas, say("4. Fuse: s and c side by side", "4. 融合：s 与 c 并排")) + 24
    own = len(data["query"])
    for name, x, part in (("s", 12.0, data["fused"][:own]), ("c", 204.0, data["fused"][own:])):
        canvas.text(x, top + 4, name)
        _vector(canvas, x + 20, top, part)
    middle = 200.0
    canvas.arrow([(middle, top + 22), (middle, top + 50)])
    canvas.text(middle + 12, top + 40, say("one matrix, softmax", "一个矩阵，softmax"), "faint", size=11)
    for place, (letter, likely) in enumerate(data["likeliest"]):
        y = top + 64 + 20 * place
        canvas.text(100, y + 4, letter, size=12 if len(letter) == 1 else 10, anchor="middle")
        canvas.rect(124, y - 6, max(180 * likely, 0.5), 13, "b1", said=f"{likely:.4f}")
        canvas.text(132 + 180 * likely, y + 4, f"{likely:.2f}", size=11)
    canvas.height = top + 64 + 20 * len(data["likeliest"])
    return canvas


def _vector(canvas: Canvas, x: float, y: float, values: Sequence[float]) -> None:
    bars(canvas, x, y, values, most=_COLUMNS, thick=_THIN, tall=28)


def _length(values: Sequence[float]) -> float:
    """Of the line under a vector."""
    return (_THIN + 2) * len(values)
