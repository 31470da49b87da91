"""A vocabulary that ranks share: embeddings, logits, and the softmax over what no rank has whole.

A rank has some rows of the embedding and output matrices, and so the logits of some tokens. A softmax over all of them
needs two numbers of each row from everybody: the largest logit, and the sum of what is left (Shoeybi et al. 2019,
section 3). Whoever takes a loss asks `output_matrix` for the matrix and for how its vocabulary lies, and goes the same
way on one device, where every question has a trivial answer. Ranks of context parallelism, which all have the hidden
states of all tokens, share these out: each takes the loss of some.

Legend: V vocabulary, W ranks, n tokens, R rows of a block, E features.
"""

from typing import Any, Final, Protocol

import torch.distributed as dist
from torch import Tensor, nn

from intaglio.parallel.collectives import bounds, cut, gathered, join, share, summed, total
from intaglio.parallel.streams import Stream

__all__ = [
    "WHOLE",
    "CutTokens",
    "Gathered",
    "SharedRows",
    "Spread",
    "Tokens",
    "Vocabulary",
    "Whole",
    "output_matrix",
]


class Tokens:
    """Of which tokens this rank takes the loss: of all."""

    def cut(self, x: Tensor) -> Tensor:
        """Those of some (n, ...)."""
        return x

    def join(self, x: Tensor, count: int) -> Tensor:
        """What all ranks found, (n,), from what this one did; `count` is n."""
        return x

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all tokens, from that over this rank's."""
        return x


class CutTokens(Tokens):
    """Of a piece; ranks of `group` have the others."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def cut(self, x: Tensor) -> Tensor:
        """See `Tokens`."""
        return cut(x, 0, self.group)

    def join(self, x: Tensor, count: int) -> Tensor:
        """See `Tokens`."""
        return join(x, 0, count, self.group) if count else x

    def sum(self, x: Tensor) -> Tensor:
        """See `Tokens`."""
        return share(total(x, self.group), self.group)


class Vocabulary(Protocol):
    """How the logits of an output matrix lie. Nothing here has a gradient: losses make theirs by hand."""

    tokens: Tokens
    """Of which this rank takes the loss."""

    sends: bool
    """Whether the softmax asks other ranks, so that few large blocks are better than many small ones."""

    def spread(self, logits: Tensor) -> Tensor:
        """Logits as they came out of this rank's rows (R, V / W) -> as the softmax is to take them (R, V or V / W)."""

    def own(self, slopes: Tensor) -> Tensor:
        """The way back, for the derivative by the logits."""

    def find(self, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """Where targets (R,) stand among this rank's logits, and which of them do (R,); None: all of them."""

    def highest(self, x: Tensor) -> Tensor:
        """The largest of all ranks."""

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all ranks."""

    def gradient(self, x: Tensor) -> Tensor:
        """The gradient of the hidden states (n, E), from that by this rank's logits."""


class Whole:
    """All of it is here."""

    sends = False
    tokens = Tokens()

    def __deepcopy__(self, memo: object) -> "Whole":
        """Copies of a model share it: groups of ranks cannot be copied."""
        return self

    def spread(self, logits: Tensor) -> Tensor:
        """See `Vocabulary`."""
        return logits

    def own(self, slopes: Tensor) -> Tensor:
        """See `Vocabulary`."""
        return slopes

    def find(self, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """See `Vocabulary`."""
        return targets, None

    def highest(self, x: Tensor) -> Tensor:
        """See `Vocabulary`."""
        return x

    def sum(self, x: Tensor) -> Tensor:
        """See `Vocabulary`."""
        return x

    def gradient(self, x: Tensor) -> Tensor:
        """See `Vocabulary`."""
        return x


WHOLE: Final = Whole()


class Gathered(Whole):
    """Each rank has some rows, and the softmax takes the logits of all.

    Args:
        size: V.
        group: the ranks.
    """

    def __init__(self, size: int, group: dist.ProcessGroup) -> None:
        self.size, self.group = size, group

    def spread(self, logits: Tensor) -> Tensor:
        """See `Vocabulary`."""
        return gathered(logits, -1, self.size, self.group)

    def own(self, slopes: Tensor) -> Tensor:
        """See `Vocabulary`."""
        return cut(slopes, -1, self.group)

    def gradient(self, x: Tensor) -> Tensor:
        """See `Vocabulary`."""
        return summed(x, self.group)


class Spread(Whole):
    """Each rank has some rows, and the logits stay where they are; arguments as of `Gathered`."""

    sends = True

    def __init__(self, size: int, group: dist.ProcessGroup) -> None:
        self.group = group
        self.start, self.length = bounds(size, group)

    def find(self, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """See `Vocabulary`."""
        places = targets - self.start
        here = (places >= 0) & (places < self.length)
        return places.masked_fill(~here, 0), here

    def highest(self, x: Tensor) -> Tensor:
        """See `Vocabulary`."""
        x = x.contiguous()
        dist.all_reduce(x, dist.ReduceOp.MAX, self.group)
        return x

    def sum(self, x: Tensor) -> Tensor:
        """See `Vocabulary`."""
        return summed(x, self.group)

    def gradient(self, x: Tensor) -> Tensor:
        """See `Vocabulary`."""
        return summed(x, self.group)


def output_matrix(head: nn.Module) -> tuple[Tensor, Vocabulary]:
    """The rows of an output matrix that this rank has, (V, E) or (V / W, E), and how its vocabulary lies."""
    weight: Any = head.weight
    return (weight.to_local() if hasattr(weight, "to_local") else weight), getattr(head, "vocabulary", WHOLE)


class SharedRows:
    """Hooks of a table of embeddings whose rows ranks share: what a rank has not is zero, and the sum is the row.

    Args:
        size: V.
        stream: what the sum goes into; is told of the forward's length.
    """

    def __init__(self, size: int, stream: Stream) -> None:
        self.spread, self.stream = Spread(size, stream.group), stream
        self._here: Tensor | None = None

    def find(self, table: nn.Module, args: Any) -> tuple[Tensor]:
        """Before the look-up: ids (B, T) as places among the rows that are here."""
        ids: Tensor = args[0]
        self.stream.length = ids.shape[1]
        places, self._here = self.spread.find(ids)
        return (places,)

    def sum(self, table: nn.Module, args: Any, rows: Tensor) -> Tensor:
        """Behind it: (B, T, E)"""
        assert self._here is not None
        return self.stream.leave(rows * self._here[..., None])
