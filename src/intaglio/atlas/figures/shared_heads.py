"""Which query head reads which keys and values: found by changing one K/V head at a time and looking who notices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from intaglio.atlas.charts import head
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.svg import Canvas
from intaglio.parts.context import Scores, attend

__all__ = ["SharedHeads", "readers"]

_WIDTH, _BOX = 400.0, 22.0


@dataclass(frozen=True)
class SharedHeads(Figure):
    """See above.

    Attributes:
        heads: that ask.
        shared: K/V heads of each panel; the last panel is latent attention, with one latent for all.
    """

    name: ClassVar[str] = "shared-heads"
    title: ClassVar[Words] = Words("Which head reads which K and V", "哪个头读哪组 K 与 V")
    claim: ClassVar[Words] = Words(
        "MHA: each head has its own K/V. GQA: a group shares one. MQA: all share one. MLA: all rebuild theirs from "
        "one latent.",
        "MHA：每个头有自己的 K/V。GQA：一组共用。MQA：全部共用。MLA：全部由同一个潜向量重建。",
    )
    heads: int = 8
    shared: tuple[int, ...] = (8, 2, 1)

    def data(self) -> Any:
        return {
            "heads": self.heads,
            "panels": [readers(self.heads, kv_heads, latent=False) for kv_heads in self.shared]
            + [readers(self.heads, 1, latent=True)],
        }

    def caption(self, data: Any) -> Words:
        return Words(
            "Each K/V head was changed alone, and the heads whose output moved are joined to it: the lines are "
            "what the attention of this code does, not what it says of itself.",
            "每次只改动一个 K/V 头，把输出随之改变的头与它相连：连线是代码的注意力实际所做，而不是它的自述。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        return [
            _panel(data["heads"], joined, place == len(data["panels"]) - 1, say)
            for place, joined in enumerate(data["panels"])
        ]


def readers(heads: int, kv_heads: int, *, latent: bool) -> list[list[int]]:
    """For each K/V head, the query heads whose output changes with it."""
    dice = torch.Generator().manual_seed(0)
    query = torch.randn(1, heads, 3, 8, generator=dice)
    key, value = (torch.randn(1, kv_heads, 3, 8, generator=dice) for _ in range(2))
    plain = _attended(query, key, value, latent)
    found = []
    for one in range(kv_heads):
        other = key.clone()
        other[:, one] += 1.0 + torch.arange(3)[:, None]
        moved = (_attended(query, other, value, latent) - plain).abs().amax(dim=(0, 2, 3)) > 1e-6
        found.append(moved.nonzero()[:, 0].tolist())
    return found


def _attended(query: Tensor, key: Tensor, value: Tensor, latent: bool) -> Tensor:
    return attend(query, key, 4 if latent else value, Scores(0.3), None, causal=True)


def _panel(heads: int, joined: list[list[int]], latent: bool, say: Say) -> Canvas:
    kv = len(joined)
    kind = "MLA" if latent else "MHA" if kv == heads else "MQA" if kv == 1 else "GQA"
    canvas = Canvas(_WIDTH, 0)
    top = head(canvas, f"{kind}: {heads} → {kv}") + 6
    step, wide = (_WIDTH - 70) / heads, (_WIDTH - 70) / kv
    below = top + 84
    canvas.text(12, top + 16, "Q")
    canvas.text(12, below + 16, say("latent", "潜向量") if latent else "K, V")
    for place, asking in enumerate(joined):
        x = 62 + (place + 0.5) * wide
        for one in asking:
            canvas.line(62 + (one + 0.5) * step, top + _BOX, x, below, "axis")
        canvas.rect(x - 24 if kv < heads else x - 13, below, 48 if kv < heads else 26, _BOX, "b1", round_by=4)
        canvas.text(x, below + 16, str(place), "on1", anchor="middle")
    for one in range(heads):
        x = 62 + (one + 0.5) * step
        canvas.rect(x - 13, top, 26, _BOX, "box", round_by=4)
        canvas.text(x, top + 16, str(one), anchor="middle")
    canvas.height = below + 30
    return canvas
