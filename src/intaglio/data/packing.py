"""Samples of many lengths put into rows of one length, so that few places stay empty.

Best-fit-decreasing keeps every sample whole: longest first, each goes into the fullest row that still holds it
(Johnson 1974; for language models Ding et al. 2024, "Fewer Truncations Improve Language Modeling"). Contiguous packing
lays the samples end to end and cuts at the rows' borders, as GPT-2 and GPT-3 were pretrained: no place stays empty,
and what was cut becomes two documents, of which the second begins without its context.
"""

import zlib
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, overload

import numpy as np

__all__ = ["Method", "PackedRows", "Piece", "efficiency", "pack"]

Method = Literal["best_fit", "contiguous", "none"]


class Piece(NamedTuple):
    """Tokens `start` up to `stop` of a sample."""

    sample: int
    start: int
    stop: int


class PackedRows(Sequence[list[Piece]]):
    """The rows of a packing; four arrays, however many rows there are.

    Args:
        pieces: `(P, 3)` int64, the pieces of all rows in order: sample, start, stop.
        borders: `(R + 1,)` int64, where each row's pieces begin, and the end of the last.
    """

    def __init__(self, pieces: np.ndarray, borders: np.ndarray) -> None:
        self._pieces, self._borders = pieces, borders

    def __len__(self) -> int:
        return len(self._borders) - 1

    @overload
    def __getitem__(self, row: int) -> list[Piece]: ...
    @overload
    def __getitem__(self, row: slice) -> list[list[Piece]]: ...
    def __getitem__(self, row: int | slice) -> list[Piece] | list[list[Piece]]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        i = range(len(self))[row]
        return [Piece(*piece) for piece in self._pieces[self._borders[i] : self._borders[i + 1]].tolist()]

    def num_tokens(self) -> int:
        """Tokens in all rows together."""
        return int((self._pieces[:, 2] - self._pieces[:, 1]).sum())

    def checksum(self) -> int:
        """A number that other rows, or the same in another order, hardly ever have."""
        return zlib.crc32(self._borders.tobytes(), zlib.crc32(self._pieces.tobytes()))

    def shuffled(self, rng: np.random.Generator) -> "PackedRows":
        """The same rows in another order."""
        return self.ordered(rng.permutation(len(self)))

    def ordered(self, order: np.ndarray) -> "PackedRows":
        """The same rows in the order of the numbers `(R,)`."""
        first, sizes = self._borders[:-1][order], np.diff(self._borders)[order]
        borders = _borders(sizes)
        places = np.repeat(first - borders[:-1], sizes) + np.arange(borders[-1])
        return PackedRows(self._pieces[places], borders)


def pack(lengths: Sequence[int] | np.ndarray, capacity: int, method: Method) -> PackedRows:
    """Puts samples into rows of at most `capacity` tokens; every token goes into exactly one row.

    Args:
        lengths: tokens of each sample, at least one.
        capacity: tokens a row holds.
        method: `best_fit` (samples stay whole; ties go by the order of `lengths`), `contiguous` (in order, cut at
            the border; a piece is a document of its own) or `none` (one sample a row). Only `contiguous` takes samples
            longer than a row: what becomes of them is decided before, where they are encoded.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    assert capacity > 0, "a row holds at least one token"
    assert not len(sizes) or sizes.min() > 0, "an empty sample"
    if method == "contiguous":
        return _contiguous(sizes, capacity)
    assert not len(sizes) or sizes.max() <= capacity, f"a sample of {sizes.max()} tokens for rows of {capacity}"
    rows = _best_fit(sizes, capacity) if method == "best_fit" else [[index] for index in range(len(sizes))]
    return _whole_samples(rows, sizes)


def efficiency(rows: PackedRows, capacity: int) -> float:
    """The share of places that hold a token, if every row had `capacity` of them; 1 where there are no rows."""
    return rows.num_tokens() / (len(rows) * capacity) if len(rows) else 1.0


def _best_fit(sizes: np.ndarray, capacity: int) -> list[list[int]]:
    """PackedRows with equal room are the same to us, so the search is over the different rooms, not over the rows."""
    rows: list[list[int]] = []
    rooms: list[int] = []  # places left in some row, each number once, ascending
    rows_with: defaultdict[int, list[int]] = defaultdict(list)
    longest_first = np.argsort(-sizes, kind="stable")
    for index, size in zip(longest_first.tolist(), sizes[longest_first].tolist(), strict=True):
        place = bisect_left(rooms, size)
        if place == len(rooms):
            row, room = len(rows), capacity
            rows.append([])
        else:
            room = rooms[place]
            row = rows_with[room].pop()
            if not rows_with[room]:
                del rooms[place]
        rows[row].append(index)
        left = room - size
        if left and not rows_with[left]:
            insort(rooms, left)
        rows_with[left].append(row)
    return rows


def _whole_samples(rows: Iterable[Sequence[int]], sizes: np.ndarray) -> PackedRows:
    kept = list(rows)
    index = np.fromiter((i for row in kept for i in row), dtype=np.int64, count=len(sizes))
    pieces = np.stack([index, np.zeros_like(index), sizes[index]], axis=1)
    return PackedRows(pieces, _borders(np.fromiter(map(len, kept), dtype=np.int64, count=len(kept))))


def _contiguous(sizes: np.ndarray, capacity: int) -> PackedRows:
    """Places are counted through all rows; a piece ends where a sample or a row does."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    row_starts = np.arange(0, total, capacity)
    begins = np.union1d(ends - sizes, row_starts)
    stops = np.append(begins[1:], total)[: len(begins)]
    index = np.searchsorted(ends, begins, side="right")
    offset = (ends - sizes)[index]
    pieces = np.stack([index, begins - offset, stops - offset], axis=1)
    return PackedRows(pieces, np.append(np.searchsorted(begins, row_starts), len(begins)))


def _borders(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
