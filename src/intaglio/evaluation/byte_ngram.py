"""What text costs without a network: an interpolated n-gram of bytes, and xz. Yardsticks for bits per byte.

The n-gram is Witten and Bell's (1991, method C), interpolated down to a uniform byte:

    P(c | h) = (count(h c) + kinds(h) * P(c | h')) / (count(h) + kinds(h))

h the bytes before c, h' the same without its first, kinds(h) how many different bytes were seen after h.
"""

import lzma
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["ByteNgram", "xz_bits_per_byte"]

Keys = NDArray[np.uint64]
Counts = NDArray[np.int64]

BYTE = np.uint64(8)
BLOCK = 1 << 23  # bytes counted at a time
LONGEST = 8  # bytes of a key


@dataclass(frozen=True)
class _Order:
    """The n-grams of one length, as sorted keys: their bytes, the oldest the most significant."""

    grams: Keys
    counts: Counts
    contexts: Keys  # all but the last byte
    totals: Counts
    kinds: Counts


class ByteNgram:
    """Trained on documents; each is read from a start of newlines, so that its first byte costs as a line's does.

    Args:
        documents: the training text.
        order: n, at most 8.
    """

    def __init__(self, documents: Iterable[bytes], order: int = 5) -> None:
        assert 0 < order <= LONGEST
        self.order = order
        grams, counts = _merge([_count(_keys(block, order)) for block in _blocks(documents)])
        self._orders = [_order(grams, counts)]
        for length in range(order - 1, 0, -1):  # shorter ones are the ends of longer ones
            mask = np.uint64((1 << 8 * length) - 1)
            grams, counts = _merge([(grams & mask, counts)])
            self._orders.insert(0, _order(grams, counts))

    def bits_per_byte(self, documents: Iterable[bytes]) -> float:
        """Bits that a byte of `documents` costs on average."""
        bits, size = 0.0, 0
        for block in _blocks(documents):
            bits -= float(np.log2(self._probabilities(_keys(block, self.order))).sum())
            size += sum(map(len, block))
        return bits / size if size else math.nan

    def _probabilities(self, keys: Keys) -> NDArray[np.float64]:
        """Of the last byte of each n-gram, after the bytes before it."""
        probability = np.full(keys.size, 1 / 256)
        for length, order in enumerate(self._orders, start=1):
            gram = keys & np.uint64((1 << 8 * length) - 1)
            context = gram >> BYTE
            kinds = _look_up(order.contexts, order.kinds, context)
            seen = _look_up(order.grams, order.counts, gram) + kinds * probability
            total = _look_up(order.contexts, order.totals, context) + kinds
            probability = np.divide(seen, total, out=probability, where=total > 0)
        return probability


def xz_bits_per_byte(documents: Iterable[bytes]) -> float:
    """Bits a byte of `documents`, joined, costs in `xz -9`: it starts knowing nothing, but may look back on all."""
    joined = b"".join(documents)
    return 8 * len(lzma.compress(joined, preset=9)) / len(joined) if joined else math.nan


def _blocks(documents: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Documents, some BLOCK bytes at a time."""
    block: list[bytes] = []
    size = 0
    for document in documents:
        block.append(document)
        size += len(document)
        if size >= BLOCK:
            yield block
            block, size = [], 0
    if block:
        yield block


def _keys(block: list[bytes], order: int) -> Keys:
    """The n-gram that ends at each byte of the documents."""
    start = b"\n" * (order - 1)
    text = np.frombuffer(start + start.join(block), dtype=np.uint8)
    ends = np.ones(text.size, dtype=np.bool_)
    place = 0
    for document in block:
        ends[place : place + order - 1] = False
        place += order - 1 + len(document)
    keys = np.zeros(text.size - order + 1, dtype=np.uint64)
    for back in range(order):
        keys = keys << BYTE | text[back : back + keys.size]
    return keys[ends[order - 1 :]]


def _count(keys: Keys) -> tuple[Keys, Counts]:
    grams, counts = np.unique(keys, return_counts=True)
    return grams, counts.astype(np.int64)


def _merge(parts: list[tuple[Keys, Counts]]) -> tuple[Keys, Counts]:
    """The same grams' counts added up, sorted by gram."""
    if not parts:
        return np.empty(0, np.uint64), np.empty(0, np.int64)
    keys, counts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    sort = np.argsort(keys, kind="stable")
    keys, counts = keys[sort], counts[sort]
    first = _firsts(keys)
    return keys[first], _sums(counts, first)


def _firsts(keys: Keys) -> NDArray[np.intp]:
    """Where each run of equal keys starts."""
    return np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: keys.size])


def _sums(counts: Counts, first: NDArray[np.intp]) -> Counts:
    """Sums over the runs that start at `first`."""
    return np.add.reduceat(counts, first) if first.size else counts


def _order(grams: Keys, counts: Counts) -> _Order:
    contexts = grams >> BYTE
    first = _firsts(contexts)
    kinds = np.diff(np.append(first, contexts.size))
    return _Order(grams, counts, contexts[first], _sums(counts, first), kinds)


def _look_up(keys: Keys, values: Counts, wanted: Keys) -> Counts:
    """The value of each wanted key, 0 for those that there are not."""
    if not keys.size:
        return np.zeros(wanted.size, dtype=np.int64)
    place = np.searchsorted(keys, wanted)
    place[place == keys.size] = 0
    return np.where(keys[place] == wanted, values[place], 0)
