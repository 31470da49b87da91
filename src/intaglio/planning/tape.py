"""What autograd keeps of a forward, counted without running it.

A forward makes tensors and some operations keep some of them for the backward; one that several operations keep (or
views of) is stored once. So the count is over storages, which is what `torch.autograd.graph.saved_tensors_hooks`
shows: the arithmetic of `planning.activations` walks the model as its forward does, and a tape remembers what is kept.
"""

import copy
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["ALONE", "FLOAT", "Shared", "Stored", "Tape"]

FLOAT = 4


@dataclass(frozen=True)
class Shared:
    """How the forward of one layer is shared out; the layer itself is the rank's part already (`shards.local_block`).

    Attributes:
        sequence: ranks of a tensor-parallel group that hold a part of what lies between the matrices each.
        context: ranks that hold a part of every sequence each.
        gathers: whether these collect keys and values (`all_gather`) or exchange heads for positions (`ulysses`).
        cpu: whether attention is computed as a CPU does it.
        twice: whether the gradient of what an adapter reads stands twice for a moment: its own beside the base's. Where
            both are plain in bf16, on a CPU, one native operator makes their sum (`parts.lora_fast`).
    """

    sequence: int = 1
    context: int = 1
    gathers: bool = False
    cpu: bool = True
    twice: bool = True

    @property
    def exchanges(self) -> bool:
        """Whether attention's result comes back from other ranks, a new tensor."""
        return self.context > 1 and not self.gathers


ALONE = Shared()


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
        tokens: in the row, of all ranks that share it.
        itemsize: bytes of one element in the dtype that the model computes in.
        documents: lengths of the documents that are packed in the row; None is one sequence, not packed.
        ranks: of the adapters on a frozen model, by the path of their matrix; None where every weight trains.
        shared: what of it a rank has.

    Attributes:
        tokens: of this rank.
        between: the same tape for what lies between the matrices, of which a rank may have fewer tokens.
    """

    def __init__(
        self,
        tokens: int,
        itemsize: int,
        documents: Sequence[int] | None = None,
        ranks: Mapping[str, int] | None = None,
        shared: Shared = ALONE,
    ) -> None:
        self.whole, self.tokens = tokens, -(-tokens // shared.context)
        self.itemsize, self.documents, self.ranks, self.shared = itemsize, documents, ranks, shared
        self.flowing = ranks is None
        self.layer = ""
        self._kept: dict[Stored, None] = {}
        self._sums: Counter[str] = Counter()
        self._products: list[Stored] = []
        self._attended: list[Stored] = []

    @property
    def between(self) -> "Tape":
        """See the class."""
        if self.shared.sequence == 1:
            return self
        part = copy.copy(self)  # what is kept stands on one list
        part.tokens = -(-self.tokens // self.shared.sequence)
        return part

    def gathered(self, x: Stored, features: int) -> Stored:
        """What the matrices read of x, which lies between them: itself, or all tokens of it, collected."""
        return x if self.shared.sequence == 1 else self.make(x.kind, features)

    def scattered(self, x: Stored, features: int) -> Stored:
        """What lies between the matrices of a product x: itself, or this rank's tokens of it."""
        return x if self.shared.sequence == 1 else self.between.make(x.kind, features)

    def part(self, whole: int) -> int:
        """What this rank has of bytes or scores that all who share the sequence have together."""
        return -(-whole // self.shared.context)

    @property
    def lengths(self) -> Sequence[int]:
        """What attends to itself: the documents, or the whole row."""
        return (self.whole,) if self.documents is None else self.documents

    def make(self, kind: str, features: int, itemsize: int | None = None) -> Stored:
        """A new tensor of `features` elements per token, in the compute dtype or of elements of `itemsize` bytes."""
        return Stored(kind, self.tokens * features * (itemsize or self.itemsize))

    def product(self, kind: str, features: int, itemsize: int | None = None) -> Stored:
        """The same, made by a matrix product: what selective checkpointing keeps."""
        made = self.make(kind, features, itemsize)
        self._products.append(made)
        return made

    def attended(self, features: int, itemsize: int | None = None) -> Stored:
        """The same, made by fused attention: what selective checkpointing keeps, too."""
        made = self.make("attention", features, itemsize)
        self._attended.append(made)
        return made

    def results(self, every: int = 1) -> Sequence[Stored]:
        """What `attended` made, and of what `product` made every so many-th from the first on."""
        return (*self._attended, *self._products[::every])

    @property
    def last_product(self) -> Stored | None:
        """What `product` made last."""
        return self._products[-1] if self._products else None

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
        for tensor in tensors:
            if tensor not in self._kept:
                self._kept[tensor] = None
                self._sums[tensor.kind] += tensor.num_bytes

    def aside(self) -> "Tape":
        """An empty tape for the same tokens: for what is kept for a moment only."""
        tape = Tape(self.whole, self.itemsize, self.documents, self.ranks, self.shared)
        tape.flowing, tape.layer = self.flowing, self.layer
        return tape

    def by_kind(self) -> dict[str, int]:
        """Bytes kept, by the part that made them."""
        return dict(self._sums)

    def has(self, tensor: Stored) -> bool:
        """Whether it is kept."""
        return tensor in self._kept

    def total(self, without: Collection[Stored] = ()) -> int:
        """Bytes kept, but those of `without`."""
        return sum(self._sums.values()) - sum(tensor.num_bytes for tensor in set(without) if tensor in self._kept)
