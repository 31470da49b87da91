"""Seq2Seq in training and in inference, side by side: what a real small model is fed, and what it predicts.

The model learns to write words backwards, and not for long, so that it errs. Then one pair is read in both ways: with
the true letters fed, and with its own.

Legend: B words, S letters of the source, T of the target, the end counted, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.atlas.charts import head
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.small_words import END, START, behind_start, learn, letters_of, reversed_to_end, words_model
from intaglio.atlas.svg import Canvas
from intaglio.atlas.wiring import box, mark_right
from intaglio.models.seq2seq import Seq2Seq

__all__ = ["TeacherForcing", "forced", "written"]

_WIDTH: Final = 400.0
_SIDE: Final = 26.0  # of a decoder's letter
_SMALL: Final = 10.0


@dataclass(frozen=True)
class TeacherForcing(Figure):
    """See above.

    Attributes:
        hidden_size: of the model.
        steps, batch, longest: of its training.
        letters: of the words that are asked for.
        words: of them; drawn is the one at which the two ways differ most.
    """

    name: ClassVar[str] = "seq2seq"
    title: ClassVar[Words] = Words("Seq2Seq in training and in inference", "Seq2Seq 的训练与推理")
    claim: ClassVar[Words] = Words(
        "Training differs from inference in the decoder's input alone: teacher forcing feeds the true token before, "
        "inference feeds each output back, from the start token to the end token.",
        "训练与推理只在解码器的输入上不同：教师强制给它前一个真实词元；推理把每个输出喂回去，从起始词元到结束词元。",
    )
    hidden_size: int = 48
    steps: int = 400
    batch: int = 32
    longest: int = 6
    letters: int = 5
    words: int = 200

    @torch.no_grad()
    def data(self) -> Any:
        with torch.enable_grad():
            model = learn(
                words_model(self.hidden_size), reversed_to_end, steps=self.steps, batch=self.batch, longest=self.longest
            )
        dice = torch.Generator().manual_seed(self.letters)
        source = torch.randint(1, 27, (self.words, self.letters), generator=dice)
        target = reversed_to_end(source)
        with_truth, alone = forced(model, source, target), written(model, source, target.shape[1])
        right = {"forced": with_truth.argmax(dim=-1) == target, "free": alone.argmax(dim=-1) == target}
        chosen = int((right["forced"].int() - right["free"].int()).sum(dim=1).argmax())
        one = slice(chosen, chosen + 1)
        return {
            "source": letters_of(source[chosen]),
            "target": letters_of(target[chosen]),
            "training": _told(behind_start(target[one])[0], with_truth[chosen]),
            "inference": _told(behind_start(alone[one].argmax(dim=-1))[0], alone[chosen]),
            "losses": F.cross_entropy(with_truth[chosen], target[chosen], reduction="none").tolist(),
            "right": {name: float(one.float().mean()) for name, one in right.items()},
        }

    def caption(self, data: Any) -> Words:
        forced, free = (f"{data['right'][name]:.0%}" for name in ("forced", "free"))
        total = f"{sum(data['losses']):.2f}"
        source, target = "".join(data["source"]), "".join(data["target"][:-1])
        return Words(
            f"A GRU model of {self.hidden_size} features without attention, after {self.steps} steps of learning to "
            f"write words backwards: “{source}” shall become “{target}”. Filled letters are wrong; under each stands "
            f"its probability. In training a mistake costs its step (the loss, {total} in all, is what the true "
            "letters lacked) and the next step goes on from the truth; in inference the next step goes on from the "
            f"mistake. Of the letters of {self.words} fresh words {forced} are right with the truth fed and {free} "
            "without. The word is the one at which the two differ most. One seed.",
            f"一个 {self.hidden_size} 维、没有注意力的 GRU 模型，学了 {self.steps} 步把词倒着写：“{source}”应写成"
            f"“{target}”。填色的字母是错的，下面是它的概率。训练时一个错误只影响那一步（损失合计 {total}，是真实字母所"
            f"欠的），下一步仍从真实字母接着走；推理时下一步从错误接着走。{self.words} 个新词的字母，喂真实字母时对 "
            f"{forced}，喂自己的对 {free}。图中的词是两者相差最大的一个。单个种子。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        return [_training(data, say), _inference(data, say)]


def forced(model: Seq2Seq, source: Tensor, target: Tensor) -> Tensor:
    """Logits (B, T, V) with the true letters fed, all steps at once."""
    return model.decode(behind_start(target), model.encode(source))


def written(model: Seq2Seq, source: Tensor, length: int) -> Tensor:
    """Logits (B, length, V) step by step, each step fed what the one before found likeliest."""
    memory = model.encode(source)
    ids, state = torch.full((len(source),), START), memory.state
    logits = []
    for _ in range(length):
        step, state, _ = model.step(ids, state, memory)
        logits.append(step)
        ids = step.argmax(dim=-1)
    return torch.stack(logits, dim=1)


def _told(fed: Tensor, logits: Tensor) -> dict[str, Any]:
    """What went in and out, up to the end where the model wrote one: ids (T,) and logits (T, V)."""
    said = logits.argmax(dim=-1)
    ended = (said == END).nonzero().flatten().tolist()
    steps = ended[0] + 1 if ended else len(said)
    likely = logits.softmax(dim=-1).amax(dim=-1)
    return {"fed": letters_of(fed[:steps]), "said": letters_of(said[:steps]), "p": likely[:steps].tolist()}


def _training(data: Any, say: Say) -> Canvas:
    told, target = data["training"], data["target"]
    canvas, top, places = _both_sides(say("Training: the truth is fed", "训练：喂真实词元"), data, told, say)
    y = top + 156
    canvas.text(12, y, say("loss of each step", "每步的损失"), "faint", size=11)
    for x, loss in zip(places, data["losses"], strict=False):
        canvas.text(x, y, f"{loss:.2f}", size=_SMALL, anchor="middle")
    canvas.text(12, y + 20, say("the truth", "真实词元"), "faint", size=11)
    for x, letter in zip(places, target, strict=False):
        canvas.text(x, y + 20, letter, size=_size(letter), anchor="middle")
    canvas.height = y + 28
    return canvas


def _inference(data: Any, say: Say) -> Canvas:
    told = data["inference"]
    canvas, top, places = _both_sides(say("Inference: each output is fed", "推理：喂自己的输出"), data, told, say)
    for here, following in pairwise(places[: len(told["fed"])]):
        between = here + 16
        out, back = top + 16, top + 122
        edge = _SIDE / 2
        canvas.arrow([(here + edge, out), (between, out), (between, back), (following - edge, back)])
    canvas.height = top + 184
    return canvas


def _both_sides(title: str, data: Any, told: Any, say: Say) -> tuple[Canvas, float, list[float]]:
    """Encoder and decoder over what they read; the y under the title, and the places of the decoder's steps."""
    canvas = Canvas(_WIDTH, 0)
    top = head(canvas, title) + 4
    steps = len(data["target"])
    across = 38.0
    begin = _WIDTH - 24 - across * (steps - 1)
    close = (begin - 44) / len(data["source"])
    middle = top + 76
    ends = [24 + close * place for place in range(len(data["source"]))]
    for x, letter in zip(ends, data["source"], strict=True):
        canvas.text(x, top + 127, letter, anchor="middle")
        canvas.arrow([(x, top + 112), (x, middle + 10)])
    places = [begin + across * place for place in range(steps)]
    _row(canvas, [*ends], middle, 18)
    _row(canvas, places, middle, 22)
    canvas.arrow([(ends[-1] + 9, middle), (begin - 11, middle)])
    _steps(canvas, places, data["target"], told, top)
    canvas.text(12, top + 40, say("encoder", "编码器"), "faint", size=11)
    return canvas, top, places


def _row(canvas: Canvas, places: Sequence[float], y: float, side: float) -> None:
    for here, following in zip(places, [*places[1:], None], strict=True):
        box(canvas, here, y, "", wide=side, tall=20)
        if following is not None:
            canvas.arrow([(here + side / 2, y), (following - side / 2, y)])


def _steps(canvas: Canvas, places: Sequence[float], target: Sequence[str], told: Any, top: float) -> None:
    """What is fed below, what is said above, and how likely that is."""
    for x, fed, said, true, likely in zip(places, told["fed"], told["said"], target, told["p"], strict=False):
        mark_right(canvas, x, top + 16, said, right=said == true, side=_SIDE)
        canvas.text(x, top + 44, f"{likely:.2f}", "faint", size=_SMALL, anchor="middle")
        canvas.arrow([(x, top + 66), (x, top + 48)])
        canvas.rect(x - _SIDE / 2, top + 110, _SIDE, 24, "box", round_by=3)
        canvas.text(x, top + 126, fed, size=_size(fed), anchor="middle")
        canvas.arrow([(x, top + 110), (x, top + 86)])


def _size(letter: str) -> float:
    return 12 if len(letter) == 1 else _SMALL
