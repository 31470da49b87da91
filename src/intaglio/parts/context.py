"""The attention context: how attention reads and writes keys and values.

One model code serves training and cached decoding because everything that differs between them is here. A layer
hands over the keys and values of the tokens it was given; the context keeps what it must and attends.

Legend: B batch, T new tokens, S tokens that can be seen, H query heads, K key/value heads, D head width.

Who sees whom is decided by positions alone, never by token values: a key is visible when its position is not after
the query's and, in a layer with a window, less than `window` before it. That aligns queries bottom right when there
are fewer of them than keys. Padding stands at position PAD, which lies after every real token, so nothing real sees
it, and padding sees at least itself, so no row of scores is empty (an empty row would be NaN).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.parts.short_attention import documents_attention, short_causal_attention, suit_together, suits

__all__ = [
    "PAD",
    "AttentionContext",
    "Causal",
    "Packed",
    "PackedWhole",
    "Padded",
    "Scores",
    "Whole",
    "attend",
    "positions_of",
    "visible",
]

PAD = 2**30


@dataclass(frozen=True)
class Scores:
    """What a layer does to its scores.

    Attributes:
        scale: multiplies them.
        window: see `AttentionSpec`.
        softcap: see `AttentionSpec`.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None


class AttentionContext(Protocol):
    """What attention needs to know of where keys and values live."""

    caches: bool
    """Whether keys outlive the forward: latent attention then keeps the latent instead of what it expands to."""

    def begin(self, positions: Tensor) -> None:
        """A forward over tokens at `positions` (B, T) starts."""

    def planned(self, positions: Tensor) -> Tensor:
        """The length each row, or each token's sequence, was planned for, (B, 1) or (B, T): what dynamic rotary scaling
        chooses its base by."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor | int, scores: Scores) -> Tensor:
        """Attention of the new tokens over all they may see.

        Args:
            layer: index of the layer, for what is kept.
            query: (B, H, T, D).
            key: (B, K, T, D).
            value: (B, K, T, Dv), or an integer: the values are the first that many features of the keys.
            scores: scale, window and cap.

        Returns:
            (B, H, T, Dv).
        """


class Causal:
    """No cache, no padding: each row is one sequence from position 0."""

    caches = False

    def begin(self, positions: Tensor) -> None:
        self._positions = positions
        self._masks: dict[int | None, Tensor | None] = {}

    @property
    def positions(self) -> Tensor:
        """(B, T) of the forward under way."""
        return self._positions

    @property
    def documents(self) -> Sequence[int]:
        """Tokens of each document of a row, in order."""
        return [self._positions.shape[1]]

    def planned(self, positions: Tensor) -> Tensor:
        """A sequence without a cache is as long as it is."""
        return torch.where(positions < PAD, positions, -1).amax(dim=1, keepdim=True) + 1

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor | int, scores: Scores) -> Tensor:
        mask = self._mask(scores.window)
        return attend(query, key, value, scores, mask, causal=mask is None)

    def _mask(self, window: int | None) -> Tensor | None:
        """None where plain causal attention will do."""
        if window is not None and window >= self._positions.shape[1]:
            window = None
        if window not in self._masks:
            self._masks[window] = self._make_mask(window)
        return self._masks[window]

    def _make_mask(self, window: int | None) -> Tensor | None:
        if window is None:
            return None
        row = self._positions[:1]  # every row counts from 0
        return visible(row, row, window)


class Padded(Causal):
    """No cache, rows of different lengths: padding left, right or anywhere, told by positions."""

    def _make_mask(self, window: int | None) -> Tensor | None:
        return visible(self._positions, self._positions, window)


class Packed(Causal):
    """No cache: one row of documents, one behind the other; each attends to itself alone, by construction.

    Args:
        lengths: tokens of each document, in order; their positions restart at 0.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = list(lengths)

    @property
    def documents(self) -> Sequence[int]:
        """See `Causal`."""
        return self._lengths

    def planned(self, positions: Tensor) -> Tensor:
        """Documents share one base, so none may be longer than the trained length; the longest plans for all."""
        return positions.new_full((1, 1), max(self._lengths))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor | int, scores: Scores) -> Tensor:
        if isinstance(value, Tensor) and self._at_once(query, key, value, scores):
            return documents_attention(query, key, value, self._lengths, scores.scale)
        parts = (x.split(self._lengths, dim=2) for x in (query, key, value) if isinstance(x, Tensor))
        outs = [self._attend_one(q, k, v, scores) for q, k, v in zip(*parts, strict=True)]
        return torch.cat(outs, dim=2)

    def _at_once(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> bool:
        """Whether there is one call for all documents."""
        plain = scores.softcap is None and (scores.window is None or scores.window >= max(self._lengths))
        return plain and suit_together(query, key, value, self._lengths, scores.scale)

    def _attend_one(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        length = query.shape[2]
        window = scores.window
        mask = self._window_mask(length, window) if window is not None and window < length else None
        if mask is None and scores.softcap is None and suits(query, key, value):
            return short_causal_attention(query, key, value, scores.scale)
        return attend(query, key, value, scores, mask, causal=mask is None)

    def _window_mask(self, length: int, window: int) -> Tensor:
        """`visible` of places from 0 on, without distances of 8 bytes that long documents have no room for."""
        seen = torch.ones((length, length), dtype=torch.bool, device=self._positions.device)
        return seen.tril_().triu_(1 - window)[None, None]


class Whole(Causal):
    """No cache, no padding, and every token sees the whole of its row: an encoder's."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor | int, scores: Scores) -> Tensor:
        return attend(query, key, value, scores, None)


class PackedWhole(Packed):
    """Documents end to end as in `Packed`, each token seeing the whole of its own."""

    def _at_once(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> bool:
        return False

    def _attend_one(self, query: Tensor, key: Tensor, value: Tensor, scores: Scores) -> Tensor:
        return attend(query, key, value, scores, None)


def positions_of(attention_mask: Tensor) -> Tensor:
    """Positions of padded rows: 0, 1, 2, ... over the ones of `attention_mask` (B, T), PAD over its zeros."""
    positions = attention_mask.long().cumsum(dim=1) - 1
    return positions.masked_fill(attention_mask == 0, PAD)


def visible(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """(B, T) and (B, S) positions -> (B, 1, T, S), True where the query sees the key."""
    distance = queries[:, :, None] - keys[:, None, :]  # (B, T, S)
    seen = distance >= 0
    if window is not None:
        seen &= distance < window
    return seen[:, None]


def attend(
    query: Tensor, key: Tensor, value: Tensor | int, scores: Scores, mask: Tensor | None, *, causal: bool = False
) -> Tensor:
    """softmax(Q K^T * scale) V over the visible keys, grouped heads without copies of K and V where that is free.

    Shapes as in `AttentionContext.attend`; `mask` is (B or 1, 1, T, S) and True where seen; `causal` needs T == S.
    """
    if isinstance(value, int):
        value = key[..., :value]
    if scores.softcap is not None:
        return _capped(query, key, value, scores, mask, causal)
    batch, heads, length, width = query.shape
    groups = heads // key.shape[1]
    if groups > 1 and length == 1:  # the heads of a group are as good as more queries: no copy of K and V
        query = query.view(batch, key.shape[1], groups, width)
        out = F.scaled_dot_product_attention(query, key, value, mask, scale=scores.scale)
        return out.view(batch, heads, 1, -1)
    return F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=causal and length > 1, scale=scores.scale, enable_gqa=groups > 1
    )


def _capped(q: Tensor, k: Tensor, v: Tensor, scores: Scores, mask: Tensor | None, causal: bool) -> Tensor:
    """The same written out, since no fused kernel caps scores; softmax in fp32 at least."""
    assert scores.softcap is not None
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    weights = scores.softcap * torch.tanh(q @ k.mT * scores.scale / scores.softcap)  # (B, H, T, S)
    if causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        weights = weights.masked_fill(~mask, float("-inf"))
    return weights.softmax(dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype) @ v
