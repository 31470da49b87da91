"""An embedder without a model: letters counted."""

from collections.abc import Sequence

import numpy as np


class ToyEmbedder:
    """Vectors of 26 counts of letters, each of length 1; remembers what it embedded."""

    name, dimension = "toy", 26

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str], *, query: bool) -> np.ndarray:
        """See `Embedder`."""
        self.texts += texts
        counts = np.array([[text.lower().count(chr(97 + i)) + 1e-3 for i in range(26)] for text in texts], np.float32)
        counts = counts.reshape(len(texts), 26)
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)
