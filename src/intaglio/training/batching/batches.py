"""From a source of examples to the micro-batches of each optimizer step, without padding.

A micro-batch is a few packed rows laid end to end: (1, N) tokens, and the lengths of the documents in them, from which
attention and positions follow. The order depends on the seed and the epoch alone, and where the stream stands is three
numbers: resumed training reads exactly what uninterrupted training would have.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from intaglio.data.examples import Example
from intaglio.data.mixture import Mixture
from intaglio.data.packing import Method, PackedRows, Piece, efficiency, pack
from intaglio.data.store import Source, Store
from intaglio.errors import UserError

__all__ = [
    "IGNORE",
    "AnnotatedStream",
    "Batch",
    "BatchStream",
    "evaluation_batches",
    "evaluation_documents",
    "make_batch",
]

IGNORE = -100  # the label of a place that predicts nothing; PyTorch's cross-entropy skips it


@dataclass(frozen=True)
class Batch:
    """One micro-batch: documents one after the other.

    Attributes:
        ids: `(1, N)` int64.
        positions: `(1, N)` int64, from 0 in each document.
        documents: tokens of each document in order; they sum to N.
        labels: `(1, N)` int64, at each place the id that follows it in its document if that one is supervised, or -100.
        num_targets: what the loss is a mean over: labels that are not -100, unless a batch of another kind says else.
        wheres: for each document where it came from.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    documents: list[int]
    labels: torch.Tensor
    num_targets: float
    wheres: list[str]

    @property
    def predicted(self) -> int:
        """Tokens that pass the output matrix."""
        return int(self.num_targets)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch with its tensors on `device`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True)
            for name, value in values.items()
            if isinstance(value, torch.Tensor)
        }
        return replace(self, **moved)


class BatchStream:
    """An endless stream of micro-batches, epoch after epoch, the same for the same arguments.

    Args:
        source: examples; a store is read in a new order each epoch.
        micro_batch: rows of a micro-batch.
        max_length: tokens a row holds.
        packing: see `pack`.
        seed: decides the order.

    Raises:
        UserError: `source` has no examples.
    """

    def __init__(
        self,
        source: Source | Store,
        micro_batch: int,
        max_length: int,
        packing: Method = "best_fit",
        seed: int = 0,
    ) -> None:
        assert micro_batch > 0, "a micro-batch has at least one row"
        self._source = source if isinstance(source, Source) else Mixture.of(source)
        self._micro_batch, self._max_length, self._packing, self._seed = micro_batch, max_length, packing, seed
        self._rank, self._world = 0, 1
        self._begin(epoch=0, window=0)

    def of_rank(self, rank: int, world: int) -> "BatchStream":
        """The same stream, which makes the batches of this rank alone (see `turns`) and passes the others over."""
        assert 0 <= rank < world, f"rank {rank} of {world}"
        self._rank, self._world = rank, world
        return self

    @property
    def epoch(self) -> int:
        """How many times the source has been read to its end."""
        return self._epoch

    @property
    def num_rows(self) -> int:
        """PackedRows of the window being read, which is the whole epoch unless the source is streamed."""
        return len(self._rows)

    @property
    def efficiency(self) -> float:
        """The share of those rows' places that hold a token."""
        return efficiency(self._rows, self._max_length)

    @property
    def mean_document(self) -> int:
        """Tokens of a document in those rows, on average over some of them."""
        lengths = [piece.stop - piece.start for row in self._rows[:256] for piece in row]
        return sum(lengths) // max(len(lengths), 1)

    def step(self, accumulation: int) -> list[Batch]:
        """This rank's micro-batches of the next optimizer step, `accumulation` of them."""
        batches = []
        for turn in range(accumulation * self._world):
            pieces = self._take(self._micro_batch)
            if turn % self._world == self._rank:
                batches.append(self._made([_cut(store[piece.sample], piece) for store, piece in pieces]))
        return batches

    def _made(self, examples: Sequence[Example]) -> Batch:
        """A micro-batch of these documents."""
        return make_batch(examples)

    def state(self) -> dict[str, int]:
        """Where the stream stands between two steps, for `load_state`: JSON, and the same on every rank.

        `epoch`, `window` and `row` are the next row's; `rows` are those of the window, `checksum` says which they are.
        """
        place = {"epoch": self._epoch, "window": self._window, "row": self._row}
        return place | {"rows": len(self._rows), "checksum": self._rows.checksum()}

    def load_state(self, state: dict[str, int]) -> None:
        """Goes on from where the stream that `state` came from stood.

        Raises:
            UserError: the examples, their order or their packing are not those of that stream.
        """
        self._begin(state["epoch"], state["window"])
        if self._rows.checksum() != state["checksum"]:
            raise UserError(
                "the data, their order or their packing are not those of the saved run",
                mend="resume with the same files, tokenizer, seed, length and packing",
            )
        self._row = state["row"]

    def _begin(self, epoch: int, window: int) -> None:
        """Stands before the first row of a window; at the end of an epoch, of the next one's first."""
        self._epoch, self._window = epoch, window
        self._windows = self._source.windows(epoch, self._seed, window)
        store = next(self._windows, None)
        if store is None:
            raise UserError("there are no examples to train on")
        self._read(store)

    def _read(self, store: Store) -> None:
        self._store, self._row = store, 0
        rng = np.random.default_rng([self._seed, self._epoch, self._window])
        self._rows: PackedRows = self._arranged(store, rng)

    def _arranged(self, store: Store, rng: np.random.Generator) -> PackedRows:
        """The rows of a window, in the order in which they are read."""
        return pack(store.lengths, self._max_length, self._packing).shuffled(rng)

    def _advance(self) -> None:
        store = next(self._windows, None)
        if store is None:
            self._begin(self._epoch + 1, 0)
            return
        self._window += 1
        self._read(store)

    def _take(self, rows: int) -> list[tuple[Store, Piece]]:
        """The documents of the next rows, across the border of an epoch if it comes to that."""
        pieces: list[tuple[Store, Piece]] = []
        for _ in range(rows):
            while self._row == len(self._rows):
                self._advance()
            pieces += [(self._store, piece) for piece in self._rows[self._row]]
            self._row += 1
        return pieces


class AnnotatedStream(BatchStream):
    """A `BatchStream` whose documents have more than their tokens, such as a label.

    Args:
        source, micro_batch, max_length, packing, seed: see `BatchStream`; packing must leave documents whole.
        annotate: the batches of a step -> the same with what belongs to their documents.
    """

    def __init__(
        self,
        source: Source | Store,
        annotate: Callable[[list[Batch]], Sequence[Batch]],
        micro_batch: int,
        max_length: int,
        packing: Method,
        seed: int = 0,
    ) -> None:
        assert packing != "contiguous", "a document that is cut has lost what belongs to it"
        super().__init__(source, micro_batch, max_length, packing, seed)
        self._annotate = annotate

    def step(self, accumulation: int) -> list[Batch]:
        """See `BatchStream.step`."""
        return list(self._annotate(super().step(accumulation)))


def evaluation_batches(
    store: Store, micro_batch: int, max_length: int, packing: Method = "best_fit"
) -> Iterator[Batch]:
    """Every example of `store` once, packed in the store's own order; the last batch may have fewer rows."""
    return map(make_batch, evaluation_documents(store, micro_batch, max_length, packing))


def evaluation_documents(
    store: Store, micro_batch: int, max_length: int, packing: Method = "best_fit"
) -> Iterator[list[Example]]:
    """The documents of each of those batches."""
    rows = pack(store.lengths, max_length, packing)
    for first in range(0, len(rows), micro_batch):
        yield [_cut(store[piece.sample], piece) for row in rows[first : first + micro_batch] for piece in row]


def make_batch(examples: Sequence[Example]) -> Batch:
    """One micro-batch of whole examples, one after the other.

    A document's first token is nobody's label: what stands before it is another document (or nothing).
    """
    lengths = np.array([len(example.ids) for example in examples])
    starts = np.cumsum(lengths) - lengths
    ids = np.concatenate([example.ids for example in examples]).astype(np.int64)  # (N,)
    target = np.concatenate([example.supervised for example in examples])  # (N,)
    target[starts] = False
    labels = np.full_like(ids, IGNORE)
    labels[:-1] = np.where(target[1:], ids[1:], IGNORE)
    positions = np.arange(len(ids)) - np.repeat(starts, lengths)
    return Batch(
        ids=torch.from_numpy(ids)[None],
        positions=torch.from_numpy(positions)[None],
        documents=lengths.tolist(),
        labels=torch.from_numpy(labels)[None],
        num_targets=int(target.sum()),
        wheres=[example.where for example in examples],
    )


def _cut(example: Example, piece: Piece) -> Example:
    if piece.stop - piece.start == len(example.ids):
        return example
    taken = slice(piece.start, piece.stop)
    return Example(example.ids[taken], example.supervised[taken], example.where)
