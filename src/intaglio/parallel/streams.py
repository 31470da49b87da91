"""How features lie between the parts of a model that ranks of tensor parallelism share, and how a part takes them.

    Alike                                        Along the sequence
    x, whole on every rank                       x, each rank a piece of its tokens
    |  share                                     |  join
    |  part with this rank's pieces              |  part with this rank's pieces
    |  total                                     |  settle
    x, whole on every rank                       x, each rank a piece of its tokens

What is sent is as much in both: an all-reduce is a reduce-scatter and an all-gather. Along the sequence, what lies
between the parts (norms, sums, what they keep for the backward) is shared out too (Korthikanti et al. 2022, section
4.2.2). Outside the stack of layers there is no difference: hidden states are whole, and so is their gradient.

Legend: B batch, T tokens, E features.
"""

from typing import Protocol

import torch.distributed as dist
from torch import Tensor

from intaglio.parallel.collectives import cut, join, join_alike, settle, share, total

__all__ = ["Alike", "AlongSequence", "Stream"]


class Stream(Protocol):
    """What lies between parts."""

    group: dist.ProcessGroup
    length: int
    """T of the forward under way, known to whoever sees ids or positions."""

    cut: bool
    """Whether ranks have different tokens, so that each has a part of the gradient of what works on them."""

    def enter(self, x: Tensor) -> Tensor:
        """Features as a part that computes a summand wants them: (B, T, E)."""

    def leave(self, x: Tensor) -> Tensor:
        """Summands (B, T, E) back into the stream."""

    def add(self, x: Tensor) -> Tensor:
        """What every rank made (B, T, E), such as positions, as the stream has it."""

    def end(self, x: Tensor) -> Tensor:
        """The stream whole: (B, T, E)."""


class Alike:
    """Every rank has all of it."""

    cut = False

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.length = group, 0

    def enter(self, x: Tensor) -> Tensor:
        """See `Stream`."""
        return share(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """See `Stream`."""
        return total(x, self.group)

    def add(self, x: Tensor) -> Tensor:
        """See `Stream`."""
        return x

    def end(self, x: Tensor) -> Tensor:
        """See `Stream`."""
        return x


class AlongSequence:
    """Each rank has a piece of the tokens, as `torch.chunk` cuts them."""

    cut = True

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.length = group, 0

    def enter(self, x: Tensor) -> Tensor:
        """See `Stream`."""
        return join(x, 1, self.length, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """See `Stream`."""
        return settle(x, 1, self.group)

    def add(self, x: Tensor) -> Tensor:
        """See `Stream`."""
        return cut(x, 1, self.group)

    def end(self, x: Tensor) -> Tensor:
        """See `Stream`."""
        return join_alike(x, 1, self.length, self.group)
