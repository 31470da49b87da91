"""The index of a folder: passages with their places and vectors, in one SQLite file that a kill cannot break.

Every file of the folder enters, changes or leaves in one transaction, so that an index is at any time true for the
files that it names. A few ten thousand vectors are searched exactly, as one matrix, faster than any structure over
them would answer; the whole store is in Python's standard library.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from intaglio.errors import UserError
from intaglio.files import whole_file

__all__ = ["Chunk", "FileState", "Index", "Settings", "place"]

_FILE: Final = "index.sqlite"
_FORMAT: Final = 1
_VECTOR: Final = np.dtype("<f4")
_TABLES: Final = """
CREATE TABLE about (settings TEXT NOT NULL, version INTEGER NOT NULL);
CREATE TABLE files (file TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, sha256 TEXT NOT NULL);
CREATE TABLE chunks (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    text TEXT NOT NULL,
    file TEXT NOT NULL REFERENCES files ON DELETE CASCADE,
    line INTEGER NOT NULL,
    last_line INTEGER NOT NULL,
    title TEXT NOT NULL,
    page INTEGER,
    vector BLOB NOT NULL
);
CREATE INDEX chunks_by_file ON chunks (file);
"""
_CHUNK: Final = "id, text, file, line, last_line, title, page"


def place(file: str, line: int, last_line: int, page: int | None) -> str:
    """For people: `guide.md:12-30`, `paper.pdf page 3`."""
    return f"{file} page {page}" if page else f"{file}:{line}-{last_line}"


@dataclass(frozen=True)
class Chunk:
    """A passage of a file.

    Attributes:
        id: a hash of file, place and text: the same passage has the same id in every run.
        text: what stands there.
        file: relative to the folder, with `/`.
        line: its first line, from 1; for PDF and docx, of the extracted text.
        last_line: its last line.
        title: the path of headings above it, `Chapter > Section`; of definitions in source code; or empty.
        page: of a PDF, from 1; else None.
    """

    id: str
    text: str
    file: str
    line: int
    last_line: int
    title: str
    page: int | None = None

    @property
    def passage(self) -> str:
        """What is searched: the title, which says what the text is about, and the text."""
        return f"{self.title}\n{self.text}" if self.title else self.text

    @property
    def place(self) -> str:
        """See `place`."""
        return place(self.file, self.line, self.last_line, self.page)


@dataclass(frozen=True)
class FileState:
    """A file as it was when it was indexed: by size and time it is taken for unchanged, else by its content.

    Attributes:
        file: relative to the folder, with `/`.
        size: bytes.
        mtime_ns: when it was last written, in nanoseconds.
        sha256: of its content.
    """

    file: str
    size: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True)
class Settings:
    """What an index was made from and with; another choice needs another index.

    Attributes:
        folder: the absolute path of the documents.
        embedder: the name of the model that made the vectors.
        dimension: of a vector.
        chunk_tokens: how long a passage may be, in about as many tokens.
    """

    folder: str
    embedder: str
    dimension: int
    chunk_tokens: int


class Index:
    """An open index, for any thread of its process. Close it, or use it in a `with`.

    Attributes:
        path: its directory.
        settings: what it was made with.
    """

    def __init__(self, path: Path, settings: Settings, store: sqlite3.Connection) -> None:
        self.path, self.settings, self._store = path, settings, store

    @classmethod
    def create(cls, path: Path, settings: Settings) -> "Index":
        """An empty index in the directory `path`; or the one that stands there, if it was made with these settings.

        Raises:
            UserError: `path` holds something else, or an index with other settings.
        """
        if not (path / _FILE).exists():
            _make(path, settings)
        index = cls.open(path)
        if index.settings != settings:
            index.close()
            raise UserError(_difference(index.settings, settings), where=str(path), mend="index into another directory")
        return index

    @classmethod
    def open(cls, path: Path) -> "Index":
        """The index in the directory `path`.

        Raises:
            UserError: there is none, or it is damaged or of another version.
        """
        file = path / _FILE
        if not file.is_file():
            mend = f"make it with `intaglio rag index FOLDER --out {path}`"
            raise UserError("there is no index", where=str(path), mend=mend)
        store = _connect(file)
        with _database_errors(path):
            if store.execute("PRAGMA user_version").fetchone() != (_FORMAT,):
                raise UserError("an index of another version", where=str(path), mend="make it anew")
            (about,) = store.execute("SELECT settings FROM about").fetchone()
        return cls(path, Settings(**json.loads(about)), store)

    def __len__(self) -> int:
        """How many chunks there are."""
        return int(self._rows("SELECT count(*) FROM chunks")[0][0])

    def files(self) -> dict[str, FileState]:
        """The files that are in the index, by name."""
        rows = self._rows("SELECT file, size, mtime_ns, sha256 FROM files ORDER BY file")
        return {row[0]: FileState(*row) for row in rows}

    def put(self, state: FileState, chunks: Sequence[Chunk], vectors: np.ndarray) -> None:
        """Takes a file in, in place of what was there of it; whole or not at all.

        Args:
            state: the file.
            chunks: its passages, maybe none.
            vectors: `(len(chunks), D)`, of length 1 each.
        """
        assert vectors.shape == (len(chunks), self.settings.dimension), vectors.shape
        rows = [(*astuple(chunk), vector.tobytes()) for chunk, vector in zip(chunks, _floats(vectors), strict=True)]
        with self._change() as store:
            store.execute("DELETE FROM files WHERE file = ?", (state.file,))
            store.execute("INSERT INTO files VALUES (?, ?, ?, ?)", astuple(state))
            store.executemany(f"INSERT INTO chunks ({_CHUNK}, vector) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def touch(self, state: FileState) -> None:
        """Notes that a file's time has changed and its content has not."""
        with self._change() as store:
            store.execute("UPDATE files SET mtime_ns = ? WHERE file = ?", (state.mtime_ns, state.file))

    def remove(self, file: str) -> None:
        """Forgets a file and its chunks."""
        with self._change() as store:
            store.execute("DELETE FROM files WHERE file = ?", (file,))

    def chunks(self) -> list[Chunk]:
        """Every chunk, in the order of `vectors`."""
        return [Chunk(*row) for row in self._rows(f"SELECT {_CHUNK} FROM chunks ORDER BY number")]

    def chunk(self, id: str) -> Chunk:
        """One chunk; KeyError if there is none with this id."""
        rows = self._rows(f"SELECT {_CHUNK} FROM chunks WHERE id = ?", id)
        if not rows:
            raise KeyError(id)
        return Chunk(*rows[0])

    def vectors(self) -> np.ndarray:
        """The vectors of all chunks, each of length 1: `(N, D)` float32."""
        rows = self._rows("SELECT vector FROM chunks ORDER BY number")
        return np.frombuffer(b"".join(row[0] for row in rows), _VECTOR).reshape(len(rows), self.settings.dimension)

    @property
    def version(self) -> int:
        """A number that grows with every change, by this process or another: what was read under it is still true."""
        return int(self._rows("SELECT version FROM about")[0][0])

    def close(self) -> None:
        """Lets go of the file."""
        self._store.close()

    def __enter__(self) -> "Index":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        with _database_errors(self.path):
            return self._store.execute(query, values).fetchall()

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with _database_errors(self.path), self._store as store:
            yield store
            store.execute("UPDATE about SET version = version + 1")


def _make(path: Path, settings: Settings) -> None:
    """A whole empty index, or none."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError("holds something else than an index", where=str(path), mend="name a new directory")
    with whole_file(path / _FILE) as beside:
        store = _connect(beside)
        store.executescript(f"{_TABLES} PRAGMA user_version = {_FORMAT};")
        with store:
            store.execute("INSERT INTO about VALUES (?, 0)", (json.dumps(asdict(settings)),))
        store.close()


def _connect(file: Path) -> sqlite3.Connection:
    store = sqlite3.connect(file, timeout=60, check_same_thread=False)
    store.execute("PRAGMA foreign_keys = ON")
    return store


def _floats(vectors: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(vectors, dtype=_VECTOR)


def _difference(there: Settings, asked: Settings) -> str:
    pairs = [(key, getattr(there, key), getattr(asked, key)) for key in asdict(asked)]
    return "the index there has " + ", ".join(f"{key} {old} (not {new})" for key, old, new in pairs if old != new)


@contextmanager
def _database_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.IntegrityError:
        raise  # a mistake of ours
    except sqlite3.OperationalError as error:
        raise UserError(f"the index cannot be used: {error}", where=str(path)) from error
    except sqlite3.DatabaseError as error:
        raise UserError(f"the index is damaged: {error}", where=str(path), mend="make it anew") from error
