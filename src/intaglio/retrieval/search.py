"""Finding passages: by meaning, by words, and by both at once."""

import os
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from intaglio.errors import UserError
from intaglio.retrieval.embedder import Embedder
from intaglio.retrieval.index import Chunk, Index
from intaglio.retrieval.sparse import BM25

__all__ = ["Hit", "Reranker", "Searcher", "fuse"]

DEPTH = 100
"""Passages that each kind of search puts forward."""
RERANKED = 20
"""Of the fused list, those that a reranker reads: it is slow, and what stands further down has hardly a chance."""
_RRF = 60  # Cormack, Clarke and Büttcher 2009: what a first place is worth more than a second


@dataclass(frozen=True)
class Hit:
    """A passage that was found.

    Attributes:
        chunk: the passage.
        score: what it was ordered by: the fused ranks, or the reranker's word.
        ranks: its place from 1 in each list that has it: `dense`, `sparse`.
        cosine: of its vector and the question's; 0 where meaning was not asked.
        share: see `BM25.shares`; 0 where words were not asked.
    """

    chunk: Chunk
    score: float
    ranks: dict[str, int] = field(default_factory=dict)
    cosine: float = 0.0
    share: float = 0.0


class Reranker(Protocol):
    """Reads question and passage together, which is slower and surer than comparing what each came to alone."""

    def scores(self, question: str, passages: Sequence[str]) -> Sequence[float]:
        """How well each passage answers the question; the highest is the best."""


@dataclass(frozen=True)
class _Contents:
    """An index in memory, as it was at one version."""

    version: int
    chunks: list[Chunk]
    vectors: NDArray[np.float32]  # (N, D)
    words: BM25


class Searcher:
    """Searches one index, from any thread; what another process changes in the index is seen at the next question.

    Close it, or use it in a `with`.

    Args:
        index: taken over.
        embedder: the one that made the index's vectors.
    """

    def __init__(self, index: Index, embedder: Embedder) -> None:
        self.index, self._embedder = index, embedder
        self._lock = threading.Lock()
        self._contents: _Contents | None = None

    @classmethod
    def open(cls, path: Path) -> "Searcher":
        """Over the index in the directory `path`, with the embedding model that it names.

        Raises:
            UserError: there is no index, or no such model.
        """
        from intaglio.retrieval.embedder import load_embedder  # not needed by a server without documents

        index = Index.open(path)
        return cls(index, load_embedder(index.settings.embedder))

    def close(self) -> None:
        """Closes the index."""
        self.index.close()

    def __enter__(self) -> "Searcher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def search(
        self, question: str, k: int, *, dense: bool = True, sparse: bool = True, rerank: Reranker | None = None
    ) -> list[Hit]:
        """The k best passages for a question, the best first; fewer where fewer have anything to do with it.

        Args:
            question: in the user's words.
            k: passages at most.
            dense: whether nearness of meaning counts.
            sparse: whether common words count.
            rerank: orders the head of the list anew.

        Raises:
            UserError: the question is empty, neither way is asked for, or the index is empty.
        """
        if not question.strip():
            raise UserError("the question is empty")
        if not (dense or sparse):
            raise UserError("neither meaning nor words are to be searched", mend="leave one of the two on")
        with self._lock:
            contents = self._current()
            cosines = contents.vectors @ self._embedder.embed([question], query=True)[0] if dense else None  # (N,)
        shares = contents.words.shares(question) if sparse else None  # (N,)
        hits = _hits(contents.chunks, {"dense": cosines, "sparse": shares}, max(k, RERANKED))
        return (_reranked(question, hits, rerank) if rerank else hits)[:k]

    def _current(self) -> _Contents:
        if self._contents is None or self._contents.version != self.index.version:
            self._contents = _read(self.index)
        return self._contents


def fuse(lists: Sequence[Sequence[int]]) -> dict[int, float]:
    """Reciprocal-rank fusion of ranked lists: each gives 1 / (60 + rank), so their scores need no common scale.

    Returns:
        the members of all lists with their sums, the highest first.
    """
    sums: dict[int, float] = {}
    for ranked in lists:
        for rank, member in enumerate(ranked, 1):
            sums[member] = sums.get(member, 0.0) + 1 / (_RRF + rank)
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _hits(chunks: Sequence[Chunk], scores: dict[str, NDArray[np.float32] | None], most: int) -> list[Hit]:
    asked = {way: values for way, values in scores.items() if values is not None}
    lists = {way: _ranked(values) for way, values in asked.items()}
    places = {way: {number: rank for rank, number in enumerate(ranked, 1)} for way, ranked in lists.items()}

    def hit(number: int, score: float) -> Hit:
        ranks = {way: found[number] for way, found in places.items() if number in found}
        values = [float(asked[way][number]) if way in asked else 0.0 for way in ("dense", "sparse")]
        return Hit(chunks[number], score, ranks, *values)

    return [hit(number, score) for number, score in list(fuse(list(lists.values())).items())[:most]]


def _ranked(values: NDArray[np.float32]) -> list[int]:
    """The numbers of the best passages, the best first; a passage that scores nothing is none."""
    depth = min(DEPTH, len(values))
    best = np.argpartition(-values, depth - 1)[:depth]
    ordered = best[np.lexsort((best, -values[best]))]  # ties by place, so that an answer can be had again
    return [int(number) for number in ordered if values[number] > 0]


def _reranked(question: str, hits: Sequence[Hit], rerank: Reranker) -> list[Hit]:
    read = hits[:RERANKED]
    scores = rerank.scores(question, [hit.chunk.passage for hit in read])
    scored = [
        Hit(hit.chunk, float(score), hit.ranks, hit.cosine, hit.share) for hit, score in zip(read, scores, strict=True)
    ]
    return [*sorted(scored, key=lambda hit: -hit.score), *hits[RERANKED:]]


def _read(index: Index) -> _Contents:
    """The index at one version, even while another process writes it.

    Raises:
        UserError: there is nothing in it.
    """
    while True:
        version = index.version
        chunks, vectors = index.chunks(), index.vectors()
        if index.version == version:
            break
    if not chunks:
        raise UserError("there is nothing in the index", where=str(index.path), mend="index a folder with documents")
    return _Contents(version, chunks, vectors, _words(index.path, version, chunks))


def _words(path: Path, version: int, chunks: Sequence[Chunk]) -> BM25:
    """The count of words, which the index's directory keeps for the next process."""
    folder = path / f"bm25-{version}"
    if folder.exists():
        return BM25.load(folder)
    counted = BM25.of([chunk.passage for chunk in chunks])
    if os.access(path, os.W_OK):  # an index may be on a disk that is only read
        counted.save(folder)
        for old in path.glob("bm25-*"):
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)
    return counted
