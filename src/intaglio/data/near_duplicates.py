"""Texts that say nearly the same: MinHash over five-character shingles (Broder 1997), found by bands of the signature.

Characters, so that it works in scripts without spaces. 64 hashes estimate the Jaccard similarity of two shingle sets
with a standard error of at most 0.06; sixteen bands of four find a pair of similarity 0.8 with probability 0.9998.

Rows of one task often repeat a long instruction, which makes any two of them look alike: what half of a first sample
of the texts has in common is left out of account.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["NearDuplicates"]

_SHINGLE = 5  # characters
_HASHES = 64
_BANDS = 16
_FEWEST = 16  # shingles; of shorter texts one word more or less makes two kinds
_LONGEST = 50_000  # characters looked at
_SAMPLE = 20  # texts of a sample below which nothing is common to half of them but by chance


class NearDuplicates:
    """Remembers texts by their signatures, 256 bytes each.

    Args:
        threshold: the least share of common shingles (Jaccard) that makes two texts near duplicates.
        sample: texts to learn from what is common to half of them; nothing from fewer than twenty.
    """

    def __init__(self, threshold: float = 0.8, sample: Iterable[str] = ()) -> None:
        self._threshold = threshold
        self._common = _common_shingles(list(sample))
        dice = np.random.default_rng(0)
        self._factors = dice.integers(1, 2**63, _HASHES, dtype=np.uint64) | np.uint64(1)
        self._signatures: list[NDArray[np.uint32]] = []
        self._names: list[str] = []
        self._buckets: dict[tuple[int, bytes], list[int]] = {}

    def add(self, text: str, name: str) -> str | None:
        """The name of the earlier text that is nearest to this one, if it is near enough; remembers this one if not."""
        signature = self._signature(text)
        if signature is None:
            return None
        bands = [(band, part.tobytes()) for band, part in enumerate(signature.reshape(_BANDS, -1))]
        similar = [(self._similarity(i, signature), -i) for i in {i for b in bands for i in self._buckets.get(b, ())}]
        nearest, index = max(similar, default=(0.0, 0))
        if nearest >= self._threshold:
            return self._names[-index]
        for band in bands:
            self._buckets.setdefault(band, []).append(len(self._names))
        self._signatures.append(signature)
        self._names.append(name)
        return None

    def _similarity(self, index: int, signature: NDArray[np.uint32]) -> float:
        return float(np.mean(self._signatures[index] == signature))

    def _signature(self, text: str) -> NDArray[np.uint32] | None:
        """For each hash its least value over the shingles, (64,); None if there are too few."""
        shingles = np.setdiff1d(_shingles(text), self._common, assume_unique=True)
        if len(shingles) < _FEWEST:
            return None
        hashed = np.multiply.outer(self._factors, shingles) >> np.uint64(32)  # (64, shingles)
        return hashed.min(axis=1).astype(np.uint32)


def _shingles(text: str) -> NDArray[np.uint64]:
    """A hash of each different stretch of five characters, in order; case and white space make no difference."""
    letters = " ".join(text.casefold().split())[:_LONGEST]
    codes = np.frombuffer(letters.encode("utf-32-le", "replace"), dtype=np.uint32).astype(np.uint64)
    shingles = np.zeros(max(0, len(codes) - _SHINGLE + 1), dtype=np.uint64)
    for place in range(_SHINGLE):  # sums wrap around, as a hash may
        shingles = shingles * np.uint64(0x9E3779B97F4A7C15) + codes[place : place + len(shingles)]
    return np.unique(shingles ^ (shingles >> np.uint64(29)))


def _common_shingles(sample: list[str]) -> NDArray[np.uint64]:
    """Those that at least half of the texts have."""
    if len(sample) < _SAMPLE:
        return np.empty(0, dtype=np.uint64)
    shingles, counts = np.unique(np.concatenate([_shingles(text) for text in sample]), return_counts=True)
    return shingles[counts * 2 >= len(sample)]
