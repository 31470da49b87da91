"""Texts that say nearly the same: MinHash over five-character shingles (Broder 1997), found by bands of the signature.

Characters, so that it works in scripts without spaces. 64 hashes estimate the Jaccard similarity of two shingle sets
with a standard error of at most 0.06; sixteen bands of four find a pair of similarity 0.8 with probability 0.9998.
"""

import numpy as np
from numpy.typing import NDArray

__all__ = ["NearDuplicates"]

_SHINGLE = 5  # characters
_HASHES = 64
_BANDS = 16
_FEWEST = 16  # shingles; of shorter texts one word more or less makes two kinds
_LONGEST = 50_000  # characters looked at


class NearDuplicates:
    """Remembers texts by their signatures, 256 bytes each.

    Args:
        threshold: the least share of common shingles (Jaccard) that makes two texts near duplicates.
    """

    def __init__(self, threshold: float = 0.8) -> None:
        self._threshold = threshold
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
        """For each hash its least value over the shingles, (64,); None for a text that is too short."""
        letters = " ".join(text.casefold().split())[:_LONGEST]
        codes = np.frombuffer(letters.encode("utf-32-le", "replace"), dtype=np.uint32).astype(np.uint64)
        if len(codes) < _FEWEST + _SHINGLE - 1:
            return None
        shingles = np.zeros(len(codes) - _SHINGLE + 1, dtype=np.uint64)
        for place in range(_SHINGLE):  # sums wrap around, as a hash may
            shingles = shingles * np.uint64(0x9E3779B97F4A7C15) + codes[place : place + len(shingles)]
        shingles ^= shingles >> np.uint64(29)
        hashed = np.multiply.outer(self._factors, np.unique(shingles)) >> np.uint64(32)  # (64, shingles)
        return hashed.min(axis=1).astype(np.uint32)
