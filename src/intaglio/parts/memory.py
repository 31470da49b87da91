"""What the encoder made of a batch of sources, and how a decoder's layers read it: the contexts of cross-attention.

Legend: B sources, S tokens of the longest, N tokens of all sources end to end, T tokens of a target, M tokens of all
targets end to end, E features of the model, H query heads, K key/value heads, D head width.

Sources lie end to end, so that padding neither costs anything nor can leak. Three ways to read them give the same
numbers: `Equal` rows as one batch, `EndToEnd` row by row, and `Kept`, which makes each layer's keys and values once
and keeps them while targets grow.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from intaglio.parts.context import Scores, attend

__all__ = ["CrossContext", "EndToEnd", "Equal", "Kept", "KeysValues", "Memory", "lay_end_to_end", "pad_rows"]


@dataclass(frozen=True)
class Memory:
    """What the encoder made of a batch of sources.

    Attributes:
        states: (1, N, E), source behind source.
        lengths: tokens of each.
    """

    states: Tensor
    lengths: tuple[int, ...]

    @property
    def equal(self) -> bool:
        """Whether all sources are as long."""
        return len(set(self.lengths)) == 1

    def padded(self) -> Tensor:
        """(B, S, E), zeros behind each source."""
        return pad_rows(self.states, self.lengths, max(self.lengths))


KeysValues = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The part of a cross-attention that a context calls: keys and values (B, K, S, D) of states (B, S, E)."""


class CrossContext(Protocol):
    """What cross-attention needs to know of where the memory's keys and values live."""

    def attend(self, layer: int, query: Tensor, keys_values: KeysValues, scores: Scores) -> Tensor:
        """(B, H, T, D) -> (B, H, T, D): attention of the targets' tokens over the whole of their sources."""


class Equal:
    """Sources of one length, targets of one length: a batch without padding."""

    def __init__(self, memory: Memory) -> None:
        self._states = memory.states.view(len(memory.lengths), memory.lengths[0], -1)

    def attend(self, layer: int, query: Tensor, keys_values: KeysValues, scores: Scores) -> Tensor:
        """See `CrossContext`."""
        return attend(query, *keys_values(self._states), scores, None)


class EndToEnd:
    """Targets lie end to end in one row of queries (1, H, M, D), as their sources do in the memory."""

    def __init__(self, memory: Memory, lengths: Sequence[int]) -> None:
        self._memory, self._lengths = memory, list(lengths)

    def attend(self, layer: int, query: Tensor, keys_values: KeysValues, scores: Scores) -> Tensor:
        """See `CrossContext`."""
        keys, values = (x.split(self._memory.lengths, dim=2) for x in keys_values(self._memory.states))
        queries = query.split(self._lengths, dim=2)
        outs = [attend(q, k, v, scores, None) for q, k, v in zip(queries, keys, values, strict=True)]
        return torch.cat(outs, dim=2)


class Kept:
    """Each layer's keys and values are made once, when they are first asked for; for generation."""

    def __init__(self, memory: Memory) -> None:
        self._states = memory.padded()
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        real = torch.arange(self._states.shape[1]) < torch.tensor(memory.lengths)[:, None]  # (B, S)
        self._mask = None if memory.equal else real[:, None, None].to(self._states.device)

    def attend(self, layer: int, query: Tensor, keys_values: KeysValues, scores: Scores) -> Tensor:
        """See `CrossContext`."""
        if layer not in self._layers:
            self._layers[layer] = keys_values(self._states)
        return attend(query, *self._layers[layer], scores, self._mask)

    def tensors(self) -> list[Tensor]:
        """What is kept of every layer."""
        return [tensor for pair in self._layers.values() for tensor in pair]

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row `rows[i]` was; a row may be taken more than once."""
        self._states = self._states[rows]
        self._mask = None if self._mask is None else self._mask[rows]
        self._layers = {layer: (keys[rows], values[rows]) for layer, (keys, values) in self._layers.items()}


def lay_end_to_end(rows: Tensor, lengths: Sequence[int]) -> Tensor:
    """(B, T, ...) -> (1, M, ...): the first `lengths[i]` places of each row."""
    return torch.cat([row[:length] for row, length in zip(rows, lengths, strict=True)])[None]


def pad_rows(flat: Tensor, lengths: Sequence[int], width: int) -> Tensor:
    """(1, M, ...) -> (B, width, ...), zeros behind each row: what `lay_end_to_end` undoes."""
    real = torch.arange(width, device=flat.device) < torch.tensor(lengths, device=flat.device)[:, None]  # (B, width)
    padded = flat.new_zeros(*real.shape, *flat.shape[2:])
    padded[real] = flat[0]
    return padded
