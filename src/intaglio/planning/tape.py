"""What autograd keeps of a forward, counted without running it.

A forward makes tensors and some operations keep some of them for the backward; one that several operations keep (or
views of) is stored once. So the count is over storages, which is what `torch.autograd.graph.saved_tensors_hooks`
shows: the arithmetic of `planning.activations` walks the model as its forward does, and a tape remembers what is kept.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["FLOAT", "Stored", "Tape"]

FLOAT = 4


@dataclass(frozen=True, eq=False)
class Stored:
    """One storage; two are the same only if they are one object.

    Attributes:
        kind: the part of the model that made it.
        num_bytes: its size.
    """

    kind: str
    num_bytes: int


class Tape:
    """A forward over one row of tokens.

    Args:
        tokens: in the row.
        itemsize: bytes of one element in the dtype that the model computes in.
        documents: lengths of the documents that are packed in the row; None is one sequence, not packed.
        ranks: of the adapters on a frozen model, by the path of their matrix; None where every weight trains.
    """

    def __init__(
        self,
        tokens: int,
        itemsize: int,
        documents: Sequence[int] | None = None,
        ranks: Mapping[str, int] | None = None,
    ) -> None:
        self.tokens, self.itemsize, self.documents, self.ranks = tokens, itemsize, documents, ranks
        self.flowing = ranks is None
        self.layer = ""
        self._kept: dict[Stored, None] = {}
        self._products: list[Stored] = []

    @property
    def lengths(self) -> Sequence[int]:
        """What attends to itself: the documents, or the whole row."""
        return (self.tokens,) if self.documents is None else self.documents

    def make(self, kind: str, features: int, itemsize: int | None = None) -> Stored:
        """A new tensor of `features` elements per token, in the compute dtype or of elements of `itemsize` bytes."""
        return Stored(kind, self.tokens * features * (itemsize or self.itemsize))

    def product(self, kind: str, features: int, itemsize: int | None = None) -> Stored:
        """The same, made by a matrix product or fused attention: what selective checkpointing keeps."""
        made = self.make(kind, features, itemsize)
        self._products.append(made)
        return made

    @property
    def products(self) -> Sequence[Stored]:
        """All that `product` made."""
        return self._products

    def as_float(self, kind: str, x: Stored, features: int) -> Stored:
        """x in fp32: itself where the model computes in fp32, else a copy."""
        return x if self.itemsize == 4 else self.make(kind, features, 4)

    def linear(self, kind: str, name: str, x: Stored, features: int, itemsize: int | None = None) -> Stored:
        """x times the matrix called `name` in its layer: T * `features` elements.

        x is kept for the gradient of a matrix that trains; for that of an adapter beside one, and what its A made.
        """
        rank = self.rank(name)
        if self.ranks is None or rank:
            self.keep(x)
        if rank:
            self.keep(self.make(kind, rank))
        return self.product(kind, features, itemsize)

    def rank(self, name: str) -> int:
        """Of the adapter beside a matrix of the layer, 0 where there is none; from one on there are gradients."""
        rank = (self.ranks or {}).get(f"{self.layer}.{name}", 0)
        self.flowing = self.flowing or rank > 0
        return rank

    def keep(self, *tensors: Stored) -> None:
        """An operation keeps them for the backward, if a gradient is to come by: not before the first adapter."""
        if self.flowing:
            self.hold(*tensors)

    def hold(self, *tensors: Stored) -> None:
        """They are kept whatever comes by: a layer that is made again wants its input."""
        self._kept.update(dict.fromkeys(tensors))

    def aside(self) -> "Tape":
        """An empty tape for the same tokens: for what is kept for a moment only."""
        tape = Tape(self.tokens, self.itemsize, self.documents, self.ranks)
        tape.flowing, tape.layer = self.flowing, self.layer
        return tape

    def by_kind(self) -> dict[str, int]:
        """Bytes kept, by the part that made them."""
        sums: Counter[str] = Counter()
        for stored in self._kept:
            sums[stored.kind] += stored.num_bytes
        return dict(sums)

    def total(self, without: Sequence[Stored] = ()) -> int:
        """Bytes kept, but those of `without`."""
        return sum(stored.num_bytes for stored in self._kept.keys() - set(without))
