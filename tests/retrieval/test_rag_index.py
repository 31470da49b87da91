"""The store: whole files in, whole files out, whatever happens in between."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from intaglio.errors import UserError
from intaglio.retrieval.index import Chunk, FileState, Index, Settings

SETTINGS = Settings("/docs", "toy", 4, 200)
CHUNKS = [Chunk("a", "one", "x.md", 1, 2, "Top"), Chunk("b", "two", "x.md", 3, 4, "Top > Low", 7)]
STATE = FileState("x.md", 10, 20, "hash")


def test_what_was_put_in_comes_out(tmp_path: Path) -> None:
    with Index.create(tmp_path / "i", SETTINGS) as index:
        index.put(STATE, CHUNKS, np.eye(4, dtype=np.float32)[:2])
        version = index.version
    with Index.open(tmp_path / "i") as index:
        assert index.chunks() == CHUNKS
        assert index.chunk("b").place == "x.md page 7"
        assert (index.vectors() == np.eye(4)[:2]).all()
        assert index.files() == {"x.md": STATE}
        assert index.version == version > 0


def test_a_file_takes_its_own_place(tmp_path: Path) -> None:
    with Index.create(tmp_path / "i", SETTINGS) as index:
        index.put(STATE, CHUNKS, np.eye(4)[:2])
        index.put(STATE, CHUNKS[:1], np.eye(4)[:1])
        assert [chunk.id for chunk in index.chunks()] == ["a"]
        index.remove("x.md")
        assert (len(index), index.files(), index.vectors().shape) == (0, {}, (0, 4))


def test_a_file_comes_whole_or_not_at_all(tmp_path: Path) -> None:
    with Index.create(tmp_path / "i", SETTINGS) as index:
        index.put(STATE, CHUNKS[:1], np.eye(4)[:1])
        with pytest.raises(sqlite3.IntegrityError):
            index.put(STATE, [CHUNKS[1], CHUNKS[1]], np.eye(4)[:2])  # the same id twice
        assert index.chunks() == CHUNKS[:1]


def test_other_settings_and_other_things_are_refused(tmp_path: Path) -> None:
    Index.create(tmp_path / "i", SETTINGS).close()
    with pytest.raises(UserError, match=r"embedder toy \(not other\)"):
        Index.create(tmp_path / "i", Settings("/docs", "other", 4, 200))
    with pytest.raises(UserError, match="there is no index"):
        Index.open(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="something else"):
        Index.create(tmp_path / "full", SETTINGS)


def test_a_damaged_index(tmp_path: Path) -> None:
    Index.create(tmp_path / "i", SETTINGS).close()
    (tmp_path / "i" / "index.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(UserError, match="damaged"):
        Index.open(tmp_path / "i")
