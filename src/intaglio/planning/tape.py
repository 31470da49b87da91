"""What autograd keeps of a forward, counted without running it.

A forward makes tensors and some operations keep some of them for the backward; one that several operations keep (or
views of) is stored once. So the count is over storages, which is what `torch.autograd.graph.saved_tensors_hooks`
shows: the arithmetic of `planning.activations` walks the model as its forward does, and a tape remembers what is kept.

An operation keeps nothing that no gradient wants: beside frozen weights that is much. So each tensor knows whether a
gradient is to come by it.
"""

import copy
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from intaglio.planning.shards import chunk

__all__ = ["ADAPTER", "ALONE", "FLOAT", "Shared", "Stored", "Tape"]

FLOAT = 4


@dataclass(frozen=True)
class Shared:
    """How the forward of one layer is shared out; the layer itself is the rank's part already (`layouts.local_spec`).

    Attributes:
        tensor: ranks of a tensor-parallel group, which have a part of every matrix each.
        sequence: of these, ranks that hold a part of what lies between the matrices each: all of them, or 1.
        context: ranks that hold a part of every sequence each.
        gathers: whether these collect keys and values (`all_gather`) or exchange heads for positions (`ulysses`).
        experts: ranks that experts are spread over, to which tokens travel; as many are taken to come as go.
        tensor_place, context_place: which of those ranks it is: the last ones' pieces may be shorter.
        cpu: whether it is computed as a CPU does it.
        quantized: whether the matrices of layers are kept in few bits.
        twice: whether the gradient of what an adapter reads stands twice for a moment: its own beside the base's. Where
            both are plain in bf16, on a CPU, one native operator makes their sum (`parts.lora_fast`).
        native: whether a CPU has our own operators, which need less for a moment in bf16.
    """

    tensor: int = 1
    sequence: int = 1
    context: int = 1
    gathers: bool = False
    experts: int = 1
    tensor_place: int = 0
    context_place: int = 0
    cpu: bool = True
    quantized: bool = False
    twice: bool = True
    native: bool = True

    @property
    def exchanges(self) -> bool:
        """Whether attention has some heads of all tokens, and its result comes back from other ranks."""
        return self.context > 1 and not self.gathers

    @property
    def collects(self) -> bool:
        """Whether attention has the keys and values of all tokens, for some queries."""
        return self.context > 1 and self.gathers


ALONE = Shared()


@dataclass(frozen=True, eq=False)
class Stored:
    """One storage; two are the same only if they are one object.

    Attributes:
        kind: the part of the model that made it.
        num_bytes: its size; 0 of a parameter, which is there anyway.
        flows: whether a gradient is to come by it.
    """

    kind: str
    num_bytes: int
    flows: bool = False


ADAPTER = Stored("adapter", 0, True)
"""Any parameter of an adapter."""


class Tape:
    """A forward over one row of tokens.

    Args:
        tokens: in the row, of all ranks that share it.
        itemsize: bytes of one element in the dtype that the model computes in.
        documents: lengths of the documents that are packed in the row; None is one sequence, not packed.
        ranks: of the adapters on a frozen model, by the path of their matrix; None where every weight trains.
        shared: what of it a rank has.

    Attributes:
        whole: tokens in the row.
        tokens: of this rank.
        layer: the path of the layer under way.
        weight: any parameter but those of adapters.
    """

    def __init__(
        self,
        tokens: int,
        itemsize: int,
        documents: Sequence[int] | None = None,
        ranks: Mapping[str, int] | None = None,
        shared: Shared = ALONE,
    ) -> None:
        self.whole, self.tokens = tokens, chunk(tokens, shared.context, shared.context_place)
        self.itemsize, self.documents, self.ranks, self.shared = itemsize, documents, ranks, shared
        self.weight = Stored("weight", 0, ranks is None)
        self.layer = ""
        self._kept: dict[Stored, None] = {}
        self._sums: Counter[str] = Counter()
        self._products: list[Stored] = []
        self._attended: list[Stored] = []
        self._weighed: list[Stored] = []

    @property
    def between(self) -> "Tape":
        """The same tape for what lies between the matrices, of which a rank may have fewer tokens."""
        if self.shared.sequence == 1:
            return self
        return self.over(chunk(self.tokens, self.shared.sequence, self.shared.tensor_place))

    @property
    def everywhere(self) -> "Tape":
        """The same tape for what a rank has of all tokens."""
        return self.over(self.whole)

    def over(self, tokens: int) -> "Tape":
        """The same tape for so many tokens."""
        part = copy.copy(self)  # what is kept stands on one list
        part.tokens = tokens
        return part

    def collected(self, kind: str, features: int, x: Stored) -> Stored:
        """What the matrices read of x, which lies between them: itself, or all tokens of it, collected.

        Pieces are sent as long as the longest, and the rest of the last one stays in memory, here and below.
        """
        ranks = self.shared.sequence
        return x if ranks == 1 else self.over(-(-self.tokens // ranks) * ranks).make(kind, features, x)

    def settled(self, kind: str, features: int, x: Stored) -> Stored:
        """What lies between the matrices of a product x: itself, or the sum of what ranks have, or a piece of that."""
        return (
            x if self.shared.tensor == 1 else self.over(-(-self.tokens // self.shared.sequence)).make(kind, features, x)
        )

    def met(self, heads: int, width: int, x: Stored) -> Stored:
        """Heads of all tokens, where other ranks have sent theirs: (B, heads, T, width)."""
        ranks = self.shared.context if heads == 1 else 1  # several heads are put in order, a copy of the right size
        return self.over(-(-self.whole // ranks) * ranks).make("attention", heads * width, x)

    def aside(self) -> "Tape":
        """An empty tape for the same tokens: for what is kept for a moment only."""
        tape = Tape(self.whole, self.itemsize, self.documents, self.ranks, self.shared)
        tape.layer = self.layer
        return tape

    @property
    def lengths(self) -> Sequence[int]:
        """What attends to itself: the documents, or the whole row."""
        return (self.whole,) if self.documents is None else self.documents

    @property
    def pieces(self) -> Iterator[tuple[int, int]]:
        """Of each document where this rank's piece of it starts and ends, counted from its first token."""
        start, first = min(-(-self.whole // self.shared.context) * self.shared.context_place, self.whole), 0
        for length in self.lengths:
            begin, end = max(first, start), min(first + length, start + self.tokens)
            if begin < end:
                yield begin - first, end - first
            first += length

    def make(self, kind: str, features: int, *of: Stored, itemsize: int | None = None) -> Stored:
        """A new tensor, made of others.

        Args:
            kind: the part that makes it.
            features: elements for each token.
            of: what it is made of, and a gradient may come by; numbers have none.
            itemsize: bytes of an element, where that is not the compute dtype.
        """
        size = self.tokens * features * (itemsize or self.itemsize)
        return Stored(kind, size, any(one.flows for one in of))

    def times(self, a: Stored, b: Stored) -> None:
        """Their product, of matrices or element by element: the gradient of each wants the other."""
        self.keep(b, a)
        self.keep(a, b)

    def product(self, kind: str, features: int, x: Stored, matrix: Stored, itemsize: int | None = None) -> Stored:
        """x times a matrix: what selective checkpointing keeps; T * `features` elements."""
        self.times(x, matrix)
        made = self.make(kind, features, x, matrix, itemsize=itemsize)
        self._products.append(made)
        return made

    def linear(self, kind: str, name: str, x: Stored, features: int) -> Stored:
        """x times the matrix called `name` in its layer, and what an adapter beside it adds: `parts.lora_fast`."""
        made, rank = self.product(kind, features, x, self.weight), self.rank(name)
        if not rank:
            return self.weighed(made, self.weight)
        low = self.product(kind, rank, x, ADAPTER)
        self.times(low, ADAPTER)
        return self.weighed(self.make(kind, features, made, low), ADAPTER)

    def weighed(self, result: Stored, weight: Stored) -> Stored:
        """`result`, for which a parameter was used: where a backward is done in two halves, its gradient waits for the
        second, in which the parameter's is made."""
        if weight.flows:
            self._weighed.append(result)
        return result

    @property
    def waiting(self) -> int:
        """Bytes of the gradients that wait so."""
        return sum(result.num_bytes for result in self._weighed)

    def take_waiting(self, other: "Tape") -> None:
        """Those of another tape wait here."""
        self._weighed += other._weighed

    def attended(self, *sizes: int, of: Sequence[Stored]) -> tuple[Stored, ...]:
        """What fused attention makes, of so many bytes each: selective checkpointing keeps it, too."""
        made = tuple(Stored("attention", size, any(one.flows for one in of)) for size in sizes)
        self._attended += made
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
        return x if self.itemsize == FLOAT else self.make(kind, features, x, itemsize=FLOAT)

    def rank(self, name: str) -> int:
        """Of the adapter beside a matrix of the layer, 0 where there is none."""
        return (self.ranks or {}).get(f"{self.layer}.{name}", 0)

    def keep(self, by: Stored, *tensors: Stored) -> None:
        """An operation keeps them for the backward, if a gradient is to come by `by`."""
        if by.flows:
            self.hold(*tensors)

    def hold(self, *tensors: Stored) -> None:
        """They are kept whatever comes by: a layer that is made again wants its input."""
        for tensor in tensors:
            if tensor.num_bytes and tensor not in self._kept:
                self._kept[tensor] = None
                self._sums[tensor.kind] += tensor.num_bytes

    def by_kind(self) -> dict[str, int]:
        """Bytes kept, by the part that made them."""
        return dict(self._sums)

    def has(self, tensor: Stored) -> bool:
        """Whether it is kept."""
        return tensor in self._kept

    def total(self, without: Collection[Stored] = ()) -> int:
        """Bytes kept, but those of `without`."""
        return sum(self._sums.values()) - sum(tensor.num_bytes for tensor in set(without) if tensor in self._kept)
