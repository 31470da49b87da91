"""Text for models that carry a state: each row of a micro-batch is a lane, and reads one long text from step to step.

The documents of an epoch are laid end to end and cut into as many lanes; step k gives the k-th stretch of every lane.
Every token but the first of a document is predicted once, also where a step or a lane ends in the middle of one. A
lane that begins in the middle of a document begins without a state.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from intaglio.data.packing import PackedRows, Piece, pack
from intaglio.data.store import Source, Store
from intaglio.training.batching.batches import IGNORE, Batch, BatchStream
from intaglio.training.objectives.specs import Carry

__all__ = ["LaneBatch", "LaneStream", "lane_batches"]


@dataclass(frozen=True)
class LaneBatch(Batch):
    """A stretch of every lane, one behind the other; a document is what runs from one state to the next.

    Attributes:
        firsts: (lanes,) int64, which document is each lane's first.
        lasts: (lanes,) int64, which is its last; what it leaves is what the lane's next stretch begins with.
        goes_on: (lanes,) bool, whether the first document begins with what the lane's last stretch left.
    """

    firsts: torch.Tensor
    lasts: torch.Tensor
    goes_on: torch.Tensor


class LaneStream(BatchStream):
    """A `BatchStream` of `LaneBatch`: the micro-batches of a step, and the steps, go on where the one before ended.

    Args:
        source, seed: see `BatchStream`.
        lanes: at most; the last steps of an epoch may have fewer.
        max_length: tokens of a lane in a micro-batch.
        carry: see `TruncatedBPTTSpec`.
    """

    def __init__(self, source: Source | Store, lanes: int, max_length: int, carry: Carry, seed: int = 0) -> None:
        self._carry: Carry = carry
        super().__init__(source, lanes, max_length, "contiguous", seed)

    def step(self, accumulation: int) -> list[Batch]:
        """See `BatchStream.step`."""
        return [self._next() for _ in range(accumulation)]

    def _arranged(self, store: Store, rng: np.random.Generator) -> PackedRows:
        return _in_lanes(store, self._micro_batch, self._max_length)

    def _next(self) -> LaneBatch:
        while self._row == len(self._rows):
            self._advance()
        first, self._row = self._row, self._row + _lanes_at(self._row, len(self._rows), self._micro_batch)
        return _stretch(self._store, self._rows[first : self._row], first == 0, self._carry)


def lane_batches(store: Store, lanes: int, max_length: int, carry: Carry) -> Iterator[LaneBatch]:
    """Every example of `store` once, as `LaneStream` reads them, in the store's own order."""
    rows, row = _in_lanes(store, lanes, max_length), 0
    while row < len(rows):
        first, row = row, row + _lanes_at(row, len(rows), lanes)
        yield _stretch(store, rows[first:row], first == 0, carry)


def _in_lanes(store: Store, lanes: int, max_length: int) -> PackedRows:
    """The stretches: the first of every lane, then the second of every lane, and so on."""
    rows = pack(store.lengths, max_length, "contiguous")
    steps = -(-len(rows) // lanes)
    order = np.arange(lanes * steps).reshape(lanes, steps).T.ravel()
    return rows.ordered(order[order < len(rows)])


def _lanes_at(row: int, rows: int, lanes: int) -> int:
    """How many lanes have a stretch in the step that begins at `row`: one lane may end before the others."""
    steps = -(-rows // lanes)
    whole, rest = divmod(rows, steps)
    return whole + (row < rest * (whole + 1))


def _stretch(store: Store, rows: Sequence[list[Piece]], fresh: bool, carry: Carry) -> LaneBatch:
    """One step of all lanes; `fresh` where it is their first."""
    lanes = [_documents(store, row, carry) for row in rows]
    documents = [document for lane in lanes for document in lane]
    counts = np.array([len(lane) for lane in lanes])
    lengths = [len(ids) for ids, _ in documents]
    labels = np.concatenate([labels for _, labels in documents])
    begun = [carry == "text" or row[0].start > 0 for row in rows]
    return LaneBatch(
        ids=torch.from_numpy(np.concatenate([ids for ids, _ in documents]))[None],
        positions=torch.from_numpy(np.concatenate([np.arange(length) for length in lengths]))[None],
        documents=lengths,
        labels=torch.from_numpy(labels)[None],
        num_targets=int((labels != IGNORE).sum()),
        wheres=[store[piece.sample].where for row in rows for piece in row],
        firsts=torch.from_numpy(counts.cumsum() - counts),
        lasts=torch.from_numpy(counts.cumsum() - 1),
        goes_on=torch.tensor([not fresh and one for one in begun]),
    )


def _documents(store: Store, row: Sequence[Piece], carry: Carry) -> list[tuple[np.ndarray, np.ndarray]]:
    """Ids and labels of a lane's stretch, cut where its state begins anew."""
    pieces = [_piece(store, piece) for piece in row]
    if carry == "document":
        return pieces
    ids, labels = zip(*pieces, strict=True)
    return [(np.concatenate(ids), np.concatenate(labels))]


def _piece(store: Store, piece: Piece) -> tuple[np.ndarray, np.ndarray]:
    """Ids and labels; the label of the last is the document's next token, which the next piece begins with."""
    example, following = store[piece.sample], slice(piece.start + 1, piece.stop + 1)
    labels = np.full(piece.stop - piece.start, IGNORE, dtype=np.int64)
    known = np.where(example.supervised[following], example.ids[following], IGNORE)
    labels[: len(known)] = known
    return example.ids[piece.start : piece.stop].astype(np.int64), labels
