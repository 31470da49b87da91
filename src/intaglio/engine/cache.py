"""The contiguous KV cache: one stretch of memory per layer, as long as the longest sequence may become.

Legend: B batch, T new tokens, S cached tokens, K key/value heads, D key width, W window.

A layer without a window keeps every token in order. A layer with one keeps a ring of W slots: token n stands in slot
n mod W, and who sees what is told by the positions kept beside it. Rows of different lengths are padded on the left,
so that all rows write the same slot.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from intaglio.parts.context import PAD, Scores, attend, visible
from intaglio.specs import DecoderSpec, StackSpec

__all__ = ["ContiguousCache"]


class ContiguousCache:
    """Keys and values of a batch of sequences; an `AttentionContext`.

    Args:
        spec: the decoder's; of an encoder-decoder its decoder side.
        batch: rows.
        capacity: tokens that fit into a row, padding included.
        planned: (B,), the length each row was planned for (its prompt and all it may generate); None: the capacity.
            With dynamic rotary scaling every key of a row is turned by the one base that this length chooses, so
            cached decoding equals the uncached forward over a row planned for the same length, token by token.
        dtype, device: of keys and values.
    """

    caches = True

    def __init__(
        self,
        spec: DecoderSpec | StackSpec,
        batch: int,
        capacity: int,
        *,
        planned: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.capacity, self.used = capacity, 0
        self._planned = planned
        self._padded = False
        self._dtype, self._device = dtype, device
        self._positions = torch.full((batch, capacity), PAD, device=device)
        windows = [block.attention.window for block in spec.blocks]
        self._layers = [_Layer(min(window or capacity, capacity)) for window in windows]

    def tensors(self) -> Iterator[Tensor]:
        """What the cache holds for every layer; their bytes are `DecoderSpec.kv_cache_bytes` times the batch."""
        for layer in self._layers:
            yield from layer.tensors

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; a row may be taken more than once."""
        self._positions = self._positions[rows]
        self._planned = None if self._planned is None else self._planned[rows]
        for layer in self._layers:
            layer.tensors = [tensor[rows] for tensor in layer.tensors]

    def planned(self, positions: Tensor) -> Tensor:
        """See the class."""
        if self._planned is None:
            return positions.new_full((positions.shape[0], 1), self.capacity)
        return self._planned[:, None]

    def begin(self, positions: Tensor) -> None:
        """Takes the next T tokens of every row in.

        Args:
            positions: (B, T), PAD over padding.
        """
        self._start, self.used = self.used, self.used + positions.shape[1]
        assert self.used <= self.capacity, f"{self.used} tokens in a cache of {self.capacity}"
        self._positions[:, self._start : self.used] = positions
        if self._start == 0 or positions.shape[1] > 1:  # padding stands before a prompt's first token, if anywhere
            self._padded = self._padded or bool((positions == PAD).any())
        self._masks: dict[int | None, Tensor | None] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor | int, scores: Scores) -> Tensor:
        """See `AttentionContext.attend`."""
        memory = self._layers[layer]
        memory.allocate(self.capacity, key, value, self._dtype)
        keys, values = self._extend(memory, key, value)
        causal = self._start == 0 and not self._padded
        mask = self._mask(scores.window, causal)
        return attend(query, keys, values, scores, mask, causal=causal and mask is None)

    def _extend(self, memory: "_Layer", key: Tensor, value: Tensor | int) -> tuple[Tensor, Tensor | int]:
        """Stores the new tokens; returns all that may be seen, in the order of `_visible_positions`."""
        if memory.slots == self.capacity or key.shape[2] == 1:
            memory.write(self._start, key, value)
            return memory.read(min(self.used, memory.slots))
        old_keys, old_values = memory.read(min(self._start, memory.slots))
        keys = torch.cat((old_keys, key), dim=2)  # before the ring is written over
        values = value
        if isinstance(value, Tensor) and isinstance(old_values, Tensor):
            values = torch.cat((old_values, value), dim=2)
        memory.write(self._start, key, value)
        return keys, values

    def _mask(self, window: int | None, causal: bool) -> Tensor | None:
        """None where every cached token is seen, or plain causal attention will do."""
        if window not in self._masks:
            self._masks[window] = self._make_mask(window, causal)
        return self._masks[window]

    def _make_mask(self, window: int | None, causal: bool) -> Tensor | None:
        new = self.used - self._start
        bounded = window is not None and window < self.used
        if not self._padded and (new == 1 or (causal and not bounded)):
            return None  # one token sees all that is kept: the ring holds its window and no more
        keys = self._visible_positions(window)
        return visible(self._positions[:, self._start : self.used], keys, window)

    def _visible_positions(self, window: int | None) -> Tensor:
        """(B, S), in the order in which `_extend` returns keys."""
        slots = min(window or self.capacity, self.capacity)
        if slots == self.capacity:
            return self._positions[:, : self.used]
        last = self.used if self.used - self._start == 1 else self._start
        ring = torch.arange(min(last, slots), device=self._positions.device)
        newest = ring + (last - 1 - ring).div(slots, rounding_mode="floor") * slots  # token that stands in each slot
        kept = self._positions[:, newest]
        return kept if last == self.used else torch.cat((kept, self._positions[:, self._start : self.used]), dim=1)


class _Layer:
    """Keys and values of one layer, (B, K, slots, D) each; where `value` is a number the keys hold the values."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.tensors: list[Tensor] = []
        self._value_width: int | None = None

    def allocate(self, capacity: int, key: Tensor, value: Tensor | int, dtype: torch.dtype) -> None:
        if self.tensors:
            return
        kept = [key] if isinstance(value, int) else [key, value]
        self.tensors = [new.new_zeros(*new.shape[:2], self.slots, new.shape[3], dtype=dtype) for new in kept]
        self._value_width = value if isinstance(value, int) else None

    def write(self, start: int, key: Tensor, value: Tensor | int) -> None:
        """Tokens start, start + 1, ... into their slots; of more than fit, the last ones."""
        for memory, new in zip(self.tensors, (key, value), strict=False):
            assert isinstance(new, Tensor)
            skipped = max(new.shape[2] - self.slots, 0)
            new, first = new[:, :, skipped:], (start + skipped) % self.slots
            head = min(self.slots - first, new.shape[2])
            memory[:, :, first : first + head] = new[:, :, :head]
            memory[:, :, : new.shape[2] - head] = new[:, :, head:]

    def read(self, count: int) -> tuple[Tensor, Tensor | int]:
        keys = self.tensors[0][:, :, :count]
        if self._value_width is not None:
            return keys, self._value_width
        return keys, self.tensors[1][:, :, :count]
