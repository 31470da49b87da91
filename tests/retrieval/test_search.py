"""Finding passages: by words, by meaning, by both, and by a reranker; words, BM25 and fusion for themselves."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from intaglio.errors import UserError
from intaglio.retrieval.index import Index, Settings
from intaglio.retrieval.search import Searcher, fuse
from intaglio.retrieval.sparse import BM25
from intaglio.retrieval.words import words
from toy_documents import ToyEmbedder, put, toy_searcher


@pytest.fixture
def searcher(tmp_path: Path) -> Searcher:
    return toy_searcher(tmp_path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("How do I call os.path.join()?", ["call", "os", "path", "join", "os.path.join"]),
        ("lru_cache", ["lru", "cache", "lru_cache"]),
        ("the TemporaryDirectory", ["temporary", "directory", "temporarydirectory"]),
        ("__enter__", ["enter", "__enter__"]),
        ("queries, classes, boxes and statuses of a bus", ["query", "class", "box", "statuse", "bus"]),
        ("Cafés", ["café"]),
        ("数据库 X", ["数", "据", "库", "数据", "据库", "x"]),
        ("what is this?", []),
    ],
)
def test_words(text: str, found: list[str]) -> None:
    assert words(text) == found


def test_bm25_is_the_formula() -> None:
    texts = ["red red green", "green blue", "blue blue blue yellow"]
    length = np.array([3, 2, 4])
    idf = math.log(1 + (3 - 1 + 0.5) / (1 + 0.5))  # red is in one text of three, and so is what no text has
    frequency = np.array([2, 0, 0])
    score = idf * frequency / (frequency + 1.5 * (1 - 0.75 + 0.75 * length / length.mean()))
    np.testing.assert_allclose(BM25.of(texts).shares("red"), score / idf, rtol=1e-5)
    np.testing.assert_allclose(BM25.of(texts).shares("red unknown"), score / (2 * idf), rtol=1e-5)
    assert not BM25.of(texts).shares("unknown").any()
    assert not BM25.of(["", "!"]).shares("red").any()


def test_fusion_adds_inverse_ranks() -> None:
    assert fuse([[7, 8], [8, 9]]) == pytest.approx({8: 1 / 62 + 1 / 61, 7: 1 / 61, 9: 1 / 62})
    assert list(fuse([[7, 8], [8, 9]])) == [8, 7, 9]


def test_the_passage_with_the_words_comes_first(searcher: Searcher) -> None:
    first, *_ = searcher.search("When does the ferry leave?", 3)
    assert (first.chunk.file, first.chunk.line) == ("boats.md", 1)
    assert first.ranks == {"dense": 1, "sparse": 1}
    assert first.score == pytest.approx(2 / 61)
    assert 0 < first.cosine <= 1
    assert 0 < first.share <= 1


def test_each_way_by_itself(searcher: Searcher) -> None:
    for way in ("dense", "sparse"):
        (hit,) = searcher.search("vet", 1, dense=way == "dense", sparse=way == "sparse")
        assert (hit.chunk.file, hit.ranks) == ("dogs.md", {way: 1})
    with pytest.raises(UserError, match="neither"):
        searcher.search("vet", 1, dense=False, sparse=False)


def test_what_has_nothing_to_do_with_it_is_no_hit(searcher: Searcher) -> None:
    assert searcher.search("quasar", 5, dense=False) == []
    assert len(searcher.search("vet", 5, dense=False)) == 1


def test_a_reranker_has_the_last_word(searcher: Searcher) -> None:
    class Longest:
        def scores(self, question: str, passages: Sequence[str]) -> list[float]:
            return [len(passage) for passage in passages]

    hits = searcher.search("ferry vet", 6, rerank=Longest())
    lengths = [len(hit.chunk.passage) for hit in hits]
    assert lengths == sorted(lengths, reverse=True)
    assert [hit.score for hit in hits] == lengths


def test_changes_are_seen_and_words_are_kept(searcher: Searcher, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not searcher.search("quasar", 1, dense=False)
    put(searcher.index, "stars.md", ["A quasar shines."])
    assert searcher.search("quasar", 1)[0].chunk.file == "stars.md"
    assert len(list(searcher.index.path.glob("bm25-*"))) == 1
    monkeypatch.setattr(BM25, "of", None)  # a second process counts nothing
    again = Searcher(Index.open(searcher.index.path), ToyEmbedder())
    assert again.search("quasar", 1, dense=False)[0].chunk.file == "stars.md"
    searcher.index.remove("stars.md")
    monkeypatch.undo()
    assert not searcher.search("quasar", 1, dense=False)


def test_refusals(searcher: Searcher, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the question is empty"):
        searcher.search(" ", 1)
    empty = Index.create(tmp_path / "empty", Settings("x", "toy", ToyEmbedder.dimension, 100))
    with pytest.raises(UserError, match="nothing in the index"):
        Searcher(empty, ToyEmbedder()).search("ferry", 1)
