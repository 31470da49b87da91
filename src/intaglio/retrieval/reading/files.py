"""The table of kinds: which reader knows which extension, and the files of a folder that have one."""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from intaglio.retrieval.chunks import Block
from intaglio.retrieval.reading.documents import read_docx, read_pdf
from intaglio.retrieval.reading.pages import read_html
from intaglio.retrieval.reading.plain import read_code, read_markdown, read_text
from intaglio.retrieval.reading.tables import read_csv, read_json, read_jsonl, read_tsv

__all__ = ["KINDS", "Document", "LeftOut", "documents", "read_blocks"]

Reader = Callable[[bytes], Iterator[Block]]

_CODE: Final = (
    ".py .pyi .js .jsx .mjs .ts .tsx .c .h .cc .cpp .cxx .hpp .cu .java .kt .scala .go .rs .rb .php .pl .lua .swift "
    ".cs .jl .r .sh .bash .sql"
).split()
_TEXT: Final = ".txt .text .rst .adoc .tex .log .yaml .yml .toml .ini .cfg .xml".split()

KINDS: Final[dict[str, Reader]] = {
    **dict.fromkeys(_TEXT, read_text),
    **dict.fromkeys(_CODE, read_code),
    **dict.fromkeys((".md", ".markdown"), read_markdown),
    **dict.fromkeys((".html", ".htm", ".xhtml"), read_html),
    ".pdf": read_pdf,
    ".docx": read_docx,
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".json": read_json,
    **dict.fromkeys((".jsonl", ".ndjson"), read_jsonl),
}
"""Extension -> reader."""


@dataclass(frozen=True)
class Document:
    """A file of a kind that we read.

    Attributes:
        path: where it is.
        file: its name below the folder, with `/`.
        size: bytes.
        mtime_ns: when it was last written.
    """

    path: Path
    file: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class LeftOut:
    """A file that is not in the index, and why.

    Attributes:
        file: its name below the folder.
        reason: a few words.
        other_kind: it was never meant to be read: a picture, a program.
    """

    file: str
    reason: str
    other_kind: bool = False


def documents(folder: Path, most_bytes: int) -> Iterator[Document | LeftOut]:
    """The files below a folder, in the order of names; hidden ones and hidden folders are not looked at.

    A link to a folder is not followed, so that no circle can hold us and a citation names a file where it is.
    """
    closed: list[OSError] = []
    for parent, folders, files in os.walk(folder, onerror=closed.append):
        place = Path(parent)
        for name in sorted(name for name in folders if not name.startswith(".") and (place / name).is_symlink()):
            yield LeftOut(_name(folder, place / name), "a link to a folder, which is not followed")
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in files if not name.startswith(".")):
            yield _looked_at(place / name, folder, most_bytes)
    for error in closed:
        yield LeftOut(_name(folder, Path(error.filename)), f"cannot be read: {error.strerror}")


def read_blocks(path: Path, content: bytes) -> list[Block]:
    """What stands in a file.

    Raises:
        Unreadable: see the reader of its kind.
    """
    return list(KINDS[path.suffix.lower()](content))


def _looked_at(path: Path, folder: Path, most_bytes: int) -> Document | LeftOut:
    file = _name(folder, path)
    try:
        state = path.stat()
    except OSError as error:
        return LeftOut(file, f"cannot be read: {error.strerror}")
    if not stat.S_ISREG(state.st_mode):
        return LeftOut(file, "not a file")
    if path.suffix.lower() not in KINDS:
        return LeftOut(file, f"of another kind ({path.suffix or 'no extension'})", other_kind=True)
    if path.is_symlink() and path.resolve().is_relative_to(folder.resolve()):
        return LeftOut(file, f"a link to {_name(folder.resolve(), path.resolve())}")
    if state.st_size > most_bytes:
        return LeftOut(file, f"{state.st_size / 1e6:.0f} MB, more than {most_bytes / 1e6:.0f} MB")
    return Document(path, file, state.st_size, state.st_mtime_ns)


def _name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()
