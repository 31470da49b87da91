"""Lexical search: BM25 (Robertson and Zaragoza 2009) over the words of every passage, by bm25s."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from intaglio.data.unpacking import needs
from intaglio.files import whole_directory
from intaglio.retrieval.words import words

__all__ = ["BM25"]


class BM25:
    """BM25 over N texts, in Lucene's form: a word gives a text its idf times a number below 1."""

    def __init__(self, scorer: Any) -> None:
        self._scorer = scorer
        self._total: int = scorer.scores["num_docs"]

    @classmethod
    def of(cls, texts: Sequence[str]) -> "BM25":
        """Counts the words of the texts, of which there is at least one."""
        scorer = _scorer_class()(backend="numpy")
        scorer.index([words(text) or [""] for text in texts], show_progress=False)
        return cls(scorer)

    @classmethod
    def load(cls, path: Path) -> "BM25":
        """What `save` wrote."""
        return cls(_scorer_class().load(path, show_progress=False))

    def save(self, path: Path) -> None:
        """Writes the directory `path`, whole or not at all."""
        with whole_directory(path) as beside:
            self._scorer.save(beside, show_progress=False)

    def shares(self, question: str) -> NDArray[np.float32]:
        """`(N,)`: each text's score, as a share of the most that the words of the question could give.

        A word that no text has counts as the rarest, so a question about something else comes to little.
        """
        asked = {word: self._texts_with(word) for word in words(question)}
        known = [word for word, found in asked.items() if found]
        if not known:
            return np.zeros(self._total, np.float32)
        return self._scorer.get_scores(known) / np.float32(sum(map(self._idf, asked.values())))

    def _texts_with(self, word: str) -> int:
        token = self._scorer.vocab_dict.get(word)
        if token is None:
            return 0
        start, end = self._scorer.scores["indptr"][token : token + 2]
        return int(end - start)

    def _idf(self, found: int) -> float:
        rest = self._total - max(found, 1) + 0.5
        return math.log(1 + rest / (max(found, 1) + 0.5))


def _scorer_class() -> Any:
    return needs("bm25s", "bm25s", "search by words", extra="rag").BM25
