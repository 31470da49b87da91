"""Which sources an answer stands on, and whether they stand where they are said to."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from intaglio.retrieval.index import FileState, Index, place
from intaglio.retrieval.measures import support
from intaglio.retrieval.prompt import NOT_FOUND, Source

__all__ = ["Citation", "State", "cite"]

State = Literal["verified", "changed", "missing"]
"""The file is there as it was indexed, is there in another form, or is not there."""

_MARK = re.compile(r"\[(\d+(?:\s*,\s*\d+)*)\]")
_SUPPORTED = 0.5  # half of the answer's words


@dataclass(frozen=True)
class Citation:
    """A source of an answer.

    Attributes:
        number: as the prompt and the answer have it.
        file: relative to the indexed folder.
        line: the passage's first line.
        last_line: the passage's last line.
        title: the headings above it.
        page: of a PDF.
        text: what the model read of it.
        by: `model` where the answer names the number; `overlap` where it names none, and its words stand there.
        state: whether the file is still what was indexed, so that the lines are the right ones.
    """

    number: int
    file: str
    line: int
    last_line: int
    title: str
    page: int | None
    text: str
    by: Literal["model", "overlap"]
    state: State

    @property
    def place(self) -> str:
        """For people."""
        return place(self.file, self.line, self.last_line, self.page)


def cite(answer: str, sources: Sequence[Source], index: Index) -> list[Citation]:
    """The sources that an answer stands on, in the order in which it names them.

    A number that no source has is nobody's citation. An answer that names none gets the source that has most of its
    words, if that has half of them.
    """
    if NOT_FOUND in answer:
        return []
    by_number = {source.number: source for source in sources}
    named = [by_number[number] for number in dict.fromkeys(_numbers(answer)) if number in by_number]
    found = named or _likeliest(answer, sources)
    files = index.files() if found else {}
    return [_citation(source, "model" if named else "overlap", index, files) for source in found]


def _numbers(answer: str) -> Iterator[int]:
    for mark in _MARK.findall(answer):
        yield from (int(number) for number in mark.split(","))


def _likeliest(answer: str, sources: Sequence[Source]) -> list[Source]:
    best = max(sources, key=lambda source: support(answer, [source.text]), default=None)
    return [best] if best and support(answer, [best.text]) >= _SUPPORTED else []


def _citation(
    source: Source, by: Literal["model", "overlap"], index: Index, files: Mapping[str, FileState]
) -> Citation:
    chunk = source.chunk
    where = (chunk.file, chunk.line, chunk.last_line, chunk.title, chunk.page)
    state = _state(Path(index.settings.folder) / chunk.file, files.get(chunk.file))
    return Citation(source.number, *where, source.text, by, state)


def _state(path: Path, noted: FileState | None) -> State:
    if noted is None or not path.is_file():
        return "missing"
    now = path.stat()
    if (now.st_size, now.st_mtime_ns) == (noted.size, noted.mtime_ns):
        return "verified"
    with path.open("rb") as content:
        return "verified" if hashlib.file_digest(content, "sha256").hexdigest() == noted.sha256 else "changed"
