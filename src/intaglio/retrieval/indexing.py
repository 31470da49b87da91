"""A folder becomes an index, and stays one: only what changed is read and embedded again, what is gone is forgotten.

Each file is taken in whole, as soon as its vectors are there; whoever stops us, at any time, finds all files that were
done, and the next run goes on with the rest.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Final

import numpy as np

from intaglio.errors import UserError
from intaglio.fetch import locked
from intaglio.retrieval.chunks import chunks_of
from intaglio.retrieval.embedder import Embedder
from intaglio.retrieval.index import Chunk, FileState, Index, Settings
from intaglio.retrieval.reading.files import KINDS, Document, LeftOut, documents, read_blocks
from intaglio.retrieval.reading.unreadable import Unreadable

__all__ = ["Report", "index_folder"]

Watch = Callable[[int, int], None]
"""Told how many bytes of the files to be read are done, and of how many."""

TOGETHER: Final = 64
"""Chunks of small files that are embedded in one go: as much as a kill may lose, beside the file at hand."""


@dataclass
class Report:
    """What a run did.

    Attributes:
        indexed: files that were read and embedded.
        unchanged: files that were in the index as they are.
        removed: files that are no longer in the folder, or can no longer be read.
        left_out: files that are not in the index, each with the reason.
        chunks: passages in the index.
        embedded: passages that were embedded in this run.
        seconds: of the whole run.
        embedding_seconds: of it, spent in the model.
    """

    indexed: int = 0
    unchanged: int = 0
    removed: int = 0
    left_out: list[LeftOut] = field(default_factory=list)
    chunks: int = 0
    embedded: int = 0
    seconds: float = 0.0
    embedding_seconds: float = 0.0


def index_folder(
    folder: Path,
    path: Path,
    embedder: Embedder,
    *,
    chunk_tokens: int = 200,
    most_bytes: int = 32_000_000,
    watch: Watch = lambda done, total: None,
) -> Report:
    """Makes or renews the index at `path` of the documents in `folder`.

    Args:
        folder: the documents.
        path: the index's directory.
        embedder: makes the vectors.
        chunk_tokens: most tokens of a passage, about.
        most_bytes: a larger file is left out.
        watch: see `Watch`.

    Raises:
        UserError: no such folder, nothing in it that we read, or an index with other settings.
    """
    if not folder.is_dir():
        raise UserError("no such folder", where=str(folder))
    began, report = perf_counter(), Report()
    found = _sorted_out(folder, most_bytes, report)
    settings = Settings(str(folder.resolve()), embedder.name, embedder.dimension, chunk_tokens)
    with Index.create(path, settings) as index, locked(path / ".lock"):
        _Run(index, embedder, report, watch).over(found)
        report.chunks = len(index)
    report.seconds = perf_counter() - began
    return report


def _sorted_out(folder: Path, most_bytes: int, report: Report) -> list[Document]:
    found: list[Document] = []
    for one in documents(folder, most_bytes):
        if isinstance(one, Document):
            found.append(one)
        else:
            report.left_out.append(one)
    if not found:
        first = report.left_out[0] if report.left_out else None
        what = f"no documents; left out: {first.file}, {first.reason}" if first else "the folder is empty"
        raise UserError(what, where=str(folder), mend=f"we read {' '.join(KINDS)}")
    return found


@dataclass(frozen=True)
class _Read:
    """A file that waits for its vectors."""

    state: FileState
    chunks: list[Chunk]


class _Run:
    """One pass over the files of a folder."""

    def __init__(self, index: Index, embedder: Embedder, report: Report, watch: Watch) -> None:
        self._index, self._embedder, self._report, self._watch = index, embedder, report, watch
        self._waiting: list[_Read] = []
        self._done = 0

    def over(self, found: Sequence[Document]) -> None:
        """Brings the index to what `found` is."""
        known = self._index.files()
        for file in known.keys() - {document.file for document in found}:
            self._forget(file)
        changed = [document for document in found if not _looks_unchanged(document, known.get(document.file))]
        self._report.unchanged = len(found) - len(changed)
        total = sum(document.size for document in changed)
        for document in changed:
            self._watch(self._done, total)
            self._take(document, known.get(document.file))
            self._done += document.size
        self._embed()
        self._watch(self._done, total)

    def _take(self, document: Document, known: FileState | None) -> None:
        try:
            content = document.path.read_bytes()
            state = FileState(document.file, document.size, document.mtime_ns, hashlib.sha256(content).hexdigest())
            if known and known.sha256 == state.sha256:
                self._index.touch(state)
                self._report.unchanged += 1
                return
            blocks = read_blocks(document.path, content)
        except (Unreadable, OSError) as error:
            self._leave_out(document.file, error)
            return
        limit = self._index.settings.chunk_tokens
        self._waiting.append(_Read(state, list(chunks_of(document.file, blocks, limit))))
        if sum(len(read.chunks) for read in self._waiting) >= TOGETHER:
            self._embed()

    def _leave_out(self, file: str, error: Unreadable | OSError) -> None:
        """A file that cannot be read is not in the index, not even as it once was."""
        reason = f"cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        self._report.left_out.append(LeftOut(file, reason))
        if file in self._index.files():
            self._forget(file)

    def _forget(self, file: str) -> None:
        self._index.remove(file)
        self._report.removed += 1

    def _embed(self) -> None:
        """Embeds the waiting files together and takes each into the index."""
        passages = [chunk.passage for read in self._waiting for chunk in read.chunks]
        began = perf_counter()
        vectors = self._embedder.embed(passages, query=False)
        self._report.embedding_seconds += perf_counter() - began
        for read, own in zip(self._waiting, _split(vectors, self._waiting), strict=True):
            self._index.put(read.state, read.chunks, own)
        self._report.indexed += len(self._waiting)
        self._report.embedded += len(passages)
        self._waiting = []


def _looks_unchanged(document: Document, known: FileState | None) -> bool:
    return known is not None and (known.size, known.mtime_ns) == (document.size, document.mtime_ns)


def _split(vectors: np.ndarray, reads: Sequence[_Read]) -> Iterator[np.ndarray]:
    start = 0
    for read in reads:
        yield vectors[start : start + len(read.chunks)]
        start += len(read.chunks)
