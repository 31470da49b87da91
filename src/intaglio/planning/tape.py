"""What autograd keeps of a forward, counted without running it.

A forward makes tensors and some operations keep some of them for the backward; one that several operations keep (or
views of) is stored once. So the count is over storages, which is what `torch.autograd.graph.saved_tensors_hooks`
shows: the arithmetic of `planning.activations` walks the model as its forward does, and a tape remembers what is kept.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Stored", "Tape"]


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
    """

    def __init__(self, tokens: int, itemsize: int, documents: Sequence[int] | None = None) -> None:
        self.tokens, self.itemsize, self.documents = tokens, itemsize, documents
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

    def keep(self, *tensors: Stored) -> None:
        """An operation keeps them for the backward."""
        self._kept.update(dict.fromkeys(tensors))

    def aside(self) -> "Tape":
        """An empty tape for the same tokens: for what is kept for a moment only."""
        return Tape(self.tokens, self.itemsize, self.documents)

    def by_kind(self) -> dict[str, int]:
        """Bytes kept, by the part that made them."""
        sums: Counter[str] = Counter()
        for stored in self._kept:
            sums[stored.kind] += stored.num_bytes
        return dict(sums)

    def total(self, without: Sequence[Stored] = ()) -> int:
        """Bytes kept, but those of `without`."""
        return sum(stored.num_bytes for stored in self._kept.keys() - set(without))
