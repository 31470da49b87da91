"""Several stores read as one: shares, caps, and an order that depends on the seed and the epoch alone."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from intaglio.data.store import Store, View
from intaglio.errors import UserError

__all__ = ["Mixture", "Part"]


@dataclass(frozen=True)
class Part:
    """One store of a mixture.

    Attributes:
        store: its examples.
        weight: its share of the examples of an epoch, in relation to the other parts' weights. Without weights each
            part is read once an epoch.
        cap: how many of its examples are used at all; the same ones in each epoch.
    """

    store: Store
    weight: float | None = None
    cap: int | None = None


class Mixture:
    """Parts in turn, shuffled together.

    An epoch has as many examples as the parts have (after caps). With weights a part gives its share of them: a small
    one comes round several times, a large one goes on in the next epoch where it stopped, and no example of a part is
    read again before all others of that part have been.

    Raises:
        UserError: weights that are missing for some parts, negative, not finite or all zero; a part that has a weight
            and no examples; a cap below one.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        _check(parts)
        self._parts = parts
        self._sizes = [len(part.store) if part.cap is None else min(len(part.store), part.cap) for part in parts]

    @classmethod
    def of(cls, *stores: Store) -> "Mixture":
        """Whole stores, each read once an epoch."""
        return cls([Part(store) for store in stores])

    @property
    def counts(self) -> list[int]:
        """How many examples of each part an epoch has."""
        if self._parts[0].weight is None:
            return self._sizes
        weights = np.array([part.weight for part in self._parts])
        until = np.rint(np.cumsum(weights / weights.sum()) * sum(self._sizes)).astype(int)
        counts: list[int] = np.diff(until, prepend=0).tolist()
        return counts

    def every(self, seed: int) -> View:
        """Each example that any epoch has, once (see `Part.cap`)."""
        parts = [Part(part.store, None, part.cap) for part in self._parts]
        return Mixture(parts)._epoch(0, seed)

    def windows(self, epoch: int, seed: int, first: int = 0) -> Iterator[Store]:
        """The epoch's examples, shuffled, as a single window; none if there are no examples (see `Source`)."""
        if first == 0 and any(self.counts):
            yield self._epoch(epoch, seed)

    def _epoch(self, epoch: int, seed: int) -> View:
        counts = self.counts
        index = np.concatenate([self._picks(part, count, epoch, seed) for part, count in enumerate(counts)])
        store = np.repeat(np.arange(len(counts)), counts)
        order = np.random.default_rng([seed, epoch]).permutation(len(index))
        return View([part.store for part in self._parts], store[order], index[order])

    def _picks(self, part: int, count: int, epoch: int, seed: int) -> np.ndarray:
        """The next `count` of an endless row of shuffled passes over the part's examples; `(count,)` int64."""
        size, begin = self._sizes[part], epoch * count
        if not count:
            return np.empty(0, dtype=np.int64)
        whole = np.random.default_rng([seed, part]).permutation(len(self._parts[part].store))
        passes = range(begin // size, (begin + count - 1) // size + 1)
        endless = np.concatenate([np.random.default_rng([seed, part, one]).permutation(size) for one in passes])
        skipped = begin - passes.start * size
        return whole[:size][endless[skipped : skipped + count]]


def _check(parts: Sequence[Part]) -> None:
    if not parts:
        raise UserError("a mixture of no data at all")
    weights: list[float] = [part.weight for part in parts if part.weight is not None]
    if len(weights) not in (0, len(parts)):
        raise UserError(f"{len(weights)} of {len(parts)} sources have a weight", mend="give each one a weight, or none")
    if weights and not (all(math.isfinite(w) and w >= 0 for w in weights) and any(weights)):
        raise UserError(f"weights {weights}: they must be finite, not negative and not all zero")
    for number, part in enumerate(parts):
        if part.cap is not None and part.cap < 1:
            raise UserError(f"a cap of {part.cap} examples", where=f"source {number}", mend="leave the source out")
        if part.weight and not len(part.store):
            raise UserError("a source with a weight and no examples", where=f"source {number}")
