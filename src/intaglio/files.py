"""Files that are whole or absent: write beside, then rename; and the cache folder."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from intaglio.errors import UserError

__all__ = [
    "home",
    "put_in_place",
    "read_begun_lines",
    "read_json",
    "read_json_lines",
    "read_text",
    "whole_directory",
    "whole_file",
    "write_json",
    "write_json_lines",
]


def home() -> Path:
    """The folder for what we fetch: `INTAGLIO_HOME`, or `~/.cache/intaglio`."""
    return Path(os.environ.get("INTAGLIO_HOME") or Path.home() / ".cache" / "intaglio").expanduser()


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a path beside `path` to write to; on success it is renamed to `path`, else removed.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        beside = Path(name)
        try:
            yield beside
            beside.chmod(0o644)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Yields a folder beside `path` to fill; on success it takes the place of `path`, else it is removed.

    Raises:
        UserError: the disk is full or the folder cannot be written.
    """
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            yield beside
            beside.chmod(0o755)
            put_in_place(beside, path)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot write: {reason}", where=str(path), mend="nothing was changed") from error


def put_in_place(beside: Path, path: Path) -> None:
    """Gives the folder `beside` the name `path`.

    Where something stands there, by two renames: that is moved away whole, and only then removed.
    """
    if not path.exists():
        beside.replace(path)
        return
    old = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
    path.replace(old / "old")
    beside.replace(path)
    shutil.rmtree(old)


def read_text(path: Path) -> str:
    """The UTF-8 text of `path`.

    Raises:
        UserError: missing, unreadable or not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read: {error.strerror}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8 text: {error}", where=str(path)) from error


def read_json(path: Path) -> Any:
    """The JSON value in `path`.

    Raises:
        UserError: missing, unreadable or not JSON; names the file and the line.
    """
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"not valid JSON: {error}", where=str(path)) from error


def read_json_lines(path: Path) -> list[Any]:
    """The JSON values in `path`, one a line; blank lines are none.

    Raises:
        UserError: missing or unreadable, or a line is not JSON; names the file and the line.
    """
    lines = enumerate(read_text(path).split("\n"), 1)  # JSON may hold what else ends a line, such as U+2028
    return [_value(line, f"{path}:{number}") for number, line in lines if line.strip()]


def read_begun_lines(path: Path) -> list[Any]:
    """The JSON values in a file that may still be written, one a line, up to a line that was cut off.

    Raises:
        UserError: missing or unreadable.
    """
    found = []
    for line in filter(str.strip, read_text(path).split("\n")):
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def _value(line: str, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise UserError(f"not valid JSON: {error}", where=where) from error


def write_json_lines(path: Path, rows: Iterable[Any]) -> None:
    """Writes a JSON value a line, whole or not at all."""
    with whole_file(path) as beside, beside.open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    """Writes `value` as UTF-8 JSON, whole or not at all; no indent for large files that nobody reads."""
    with whole_file(path) as beside:
        beside.write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n", encoding="utf-8")
