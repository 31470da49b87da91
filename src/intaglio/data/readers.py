"""Rows of the user's files, one after the other, each with the place it stands at.

What is read, by extension (with `.gz` or `.zst` behind it where the kind is read from front to end):

- `.jsonl`: an object or a text a line. `.json`: a list of them, `{"data": [...]}`, one object, or lines after all.
- `.csv`: a row for each record, by the names in the first. `.parquet`: a row for each record.
- `.txt`: one document. Any other text file counts as one too where a path or a glob names it.

A folder is searched to the bottom, links followed, each file read once, in the order of names; hidden files are not
looked at. A row or file that cannot be read is an error where the user named the file; where a folder or a glob was
given it is left out and listed in `Rows.skipped`, as is a file of another kind. So is an empty document.
"""

import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from intaglio.data.row_formats import DOCUMENT_SUFFIX, READERS, Broken
from intaglio.data.unpacking import suffix_inside
from intaglio.errors import UserError

__all__ = ["Row", "Rows", "Skipped", "read_rows"]

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")  # owner/name


@dataclass(frozen=True)
class Row:
    """One row or document.

    Attributes:
        value: an object's keys and values, or a text.
        where: `file:line` in files of lines, `file#index` (from 0) in others, the file itself for a document.
    """

    value: dict[str, Any] | str
    where: str


@dataclass(frozen=True)
class Skipped:
    """A file or row that was left out, and why."""

    where: str
    reason: str


class Rows(Iterator[Row]):
    """The rows of some files, read as they are asked for.

    Attributes:
        files: what is read, in order.
        skipped: what was left out so far; complete when the last row has been read.
    """

    def __init__(self, files: tuple[Path, ...], skipped: list[Skipped], keep_going: bool) -> None:
        self.files, self.skipped = files, skipped
        self._keep_going = keep_going
        self._rows = self._read()

    def __next__(self) -> Row:
        return next(self._rows)

    def _read(self) -> Iterator[Row]:
        for file in self.files:
            try:
                yield from self._rows_of(file)
            except (UserError, OSError) as error:
                broken = _named(file, error)
                if not self._keep_going:
                    raise broken from error
                self.skipped.append(Skipped(broken.where, broken.what))

    def _rows_of(self, file: Path) -> Iterator[Row]:
        reader = READERS.get(suffix_inside(file), READERS[DOCUMENT_SUFFIX])
        for where, value in reader(file):
            if not isinstance(value, Broken):
                yield Row(value, where)
            elif self._keep_going:
                self.skipped.append(Skipped(where, value.reason))
            else:
                raise UserError(value.reason, where=where)


def read_rows(source: str | Path, *, keep_going: bool | None = None) -> Rows:
    """The rows of a file, of every file a glob matches, or of a folder.

    Args:
        source: a path or a glob (`data/**/*.py`).
        keep_going: whether to leave out and list what cannot be read; None: unless `source` names one file.

    Raises:
        UserError: nothing there, or nothing of a known kind; when read: a row or file that cannot be (see above).
    """
    path = Path(source).expanduser()
    if path.is_dir():
        files, skipped = _sort_out(_walk(path), known_only=True)
    elif os.path.lexists(path):
        files, skipped = (path,), []
        keep_going = bool(keep_going)
    else:
        files, skipped = _sort_out(_matches(path), known_only=False)
    if not files:
        raise _nothing(source, skipped)
    return Rows(files, skipped, keep_going is not False)


def _named(file: Path, error: UserError | OSError) -> UserError:
    if isinstance(error, UserError):
        return error
    return UserError(f"cannot read: {error.strerror or error}", where=str(file))


def _nothing(source: str | Path, skipped: list[Skipped]) -> UserError:
    kinds = ", ".join(READERS)
    if skipped:
        first = f"{len(skipped)} left out, the first, {skipped[0].where}, because it is {skipped[0].reason}"
        others = f"other texts where a glob names them, as '{source}/**/*.md'"
        return UserError(f"no data ({first})", where=str(source), mend=f"we read {kinds} (.gz and .zst too); {others}")
    if Path(source).expanduser().is_dir():
        return UserError("no data: the folder is empty", where=str(source), mend=f"put {kinds} files there")
    mend = "check the path"
    if _HUB_ID.fullmatch(str(source)):
        mend = f"check the path, or write hub:{source} if a hub's data set is meant"
    return UserError("no such file or folder, and no file matches it", where=str(source), mend=mend)


def _walk(folder: Path) -> Iterator[Path]:
    """Files below `folder` by name, each folder once: links may lead back up."""
    seen: set[tuple[int, int]] = set()
    closed: list[OSError] = []
    for parent, folders, files in os.walk(folder, followlinks=True, onerror=closed.append):
        there = os.stat(parent)
        if (there.st_dev, there.st_ino) in seen:
            folders.clear()
            continue
        seen.add((there.st_dev, there.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(files) if not name.startswith("."))
    yield from (Path(error.filename) for error in closed)


def _matches(pattern: Path) -> Iterator[Path]:
    found = sorted(glob.glob(str(pattern), recursive=True))
    yield from (Path(name) for name in found if not os.path.isdir(name))


def _sort_out(paths: Iterable[Path], known_only: bool) -> tuple[tuple[Path, ...], list[Skipped]]:
    """The files to read and those to leave out; a link to a file that is read already is left out."""
    read: dict[str, Path] = {}
    skipped = []
    for path in paths:
        reason = _why_not(path, known_only)
        real = os.path.realpath(path)
        if not reason and real in read:
            reason = f"the same file as {read[real]}"
        if reason:
            skipped.append(Skipped(str(path), reason))
        else:
            read[real] = path
    return tuple(read.values()), skipped


def _why_not(path: Path, known_only: bool) -> str:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"unreadable: {error.strerror}"
    if stat.S_ISDIR(mode):
        return "a folder that cannot be read"
    if not stat.S_ISREG(mode):
        return "not a file"
    if known_only and suffix_inside(path) not in READERS:
        return f"of another kind ({path.suffix or 'no extension'})"
    return ""
