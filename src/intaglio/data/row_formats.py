"""The kinds of file that hold rows: each reader yields the place of a row and its value, or why it has none.

A row that cannot be read does not end a file of lines: the caller decides. What spoils the whole file is an error.
"""

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from intaglio.data.unpacking import PACKED, needs, open_bytes
from intaglio.errors import UserError

__all__ = ["DOCUMENT_SUFFIX", "READERS", "Broken"]

DOCUMENT_SUFFIX = ".txt"
_BOM = b"\xef\xbb\xbf"
_LONGEST_CELL = 2**31 - 1  # characters; the csv module's own limit is 131,072


@dataclass(frozen=True)
class Broken:
    """A row that cannot be read, and why."""

    reason: str


Value = dict[str, Any] | str | Broken
Reader = Callable[[Path], Iterator[tuple[str, Value]]]


def _document(file: Path) -> Iterator[tuple[str, Value]]:
    with open_bytes(file) as stream:
        text = _decoded(stream.read().removeprefix(_BOM))
    if isinstance(text, str) and not text.strip():
        text = Broken("an empty document")
    yield str(file), text


def _json_lines(file: Path) -> Iterator[tuple[str, Value]]:
    with open_bytes(file) as stream:
        for number, line in enumerate(stream, 1):
            if number == 1:
                line = line.removeprefix(_BOM)
            if line.strip():
                yield f"{file}:{number}", _parsed_line(line)


def _json(file: Path) -> Iterator[tuple[str, Value]]:
    with open_bytes(file) as stream:
        content = _decoded(stream.read().removeprefix(_BOM))
    if isinstance(content, Broken):
        raise UserError(content.reason, where=str(file))
    try:
        whole = _loads(content)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # lines of JSON under the wrong name, as many data sets have them
            yield from _json_lines(file)
            return
        raise UserError(f"not valid JSON: {error.msg}", where=f"{file}:{error.lineno}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"not valid JSON: {error}", where=str(file)) from error
    for index, value in enumerate(_rows_in(whole)):
        yield f"{file}#{index}", _checked(value)


def _rows_in(whole: Any) -> list[Any]:
    if isinstance(whole, dict) and set(whole) == {"data"} and isinstance(whole["data"], list):
        return whole["data"]
    return whole if isinstance(whole, list) else [whole]


def _csv(file: Path) -> Iterator[tuple[str, Value]]:
    csv.field_size_limit(_LONGEST_CELL)
    with open_bytes(file) as stream:
        records = csv.reader(_lines(file, stream), strict=True)
        try:
            names = next(records, [])
            _check_names(names, file)
            line = records.line_num + 1
            for record in records:
                if record:
                    yield f"{file}:{line}", _named_cells(names, record)
                line = records.line_num + 1
        except csv.Error as error:
            raise UserError(f"not valid CSV: {error}", where=f"{file}:{records.line_num}") from error


def _lines(file: Path, stream: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(stream, 1):
        text = _decoded(line.removeprefix(_BOM) if number == 1 else line)
        if isinstance(text, Broken):
            raise UserError(text.reason, where=f"{file}:{number}")
        yield text


def _check_names(names: list[str], file: Path) -> None:
    twice = {name for name in names if names.count(name) > 1}
    if not any(names) or twice:
        wrong = f"names {sorted(twice)[0]!r} twice" if twice else "names no column"
        raise UserError(f"the first line {wrong}", where=f"{file}:1", mend="put the columns' names there")


def _named_cells(names: list[str], cells: list[str]) -> Value:
    if len(cells) != len(names):
        return Broken(f"{len(cells)} cells where the first line names {len(names)} columns")
    return dict(zip(names, cells, strict=True))


def _parquet(file: Path) -> Iterator[tuple[str, Value]]:
    if file.suffix.lower() in PACKED:
        mend = "unpack it first: Parquet is packed inside"
        raise UserError("a packed Parquet file cannot be read", where=str(file), mend=mend)
    arrow, parquet = (needs(name, "pyarrow", str(file)) for name in ("pyarrow", "pyarrow.parquet"))
    try:
        with parquet.ParquetFile(file) as table:
            index = 0
            for batch in table.iter_batches(batch_size=1024):
                for value in batch.to_pylist():
                    yield f"{file}#{index}", value
                    index += 1
    except arrow.ArrowException as error:
        reason = str(error).splitlines()[0][:120]
        raise UserError(f"not a Parquet file that can be read ({reason})", where=str(file)) from error


def _parsed_line(line: bytes) -> Value:
    text = _decoded(line)
    if isinstance(text, Broken):
        return text
    try:
        return _checked(_loads(text))
    except json.JSONDecodeError as error:
        return Broken(f"not valid JSON: {error.msg} (column {error.colno})")
    except (ValueError, RecursionError) as error:  # a number or a nesting without end
        return Broken(f"not valid JSON: {error}")


def _loads(text: str) -> Any:
    value = json.loads(text)
    if "\\ud" in text or "\\uD" in text:
        _refuse_halves(value)
    return value


def _refuse_halves(value: Any) -> None:
    """JSON may spell half of a surrogate pair, which is no character."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair stands alone") from error


def _checked(value: Any) -> Value:
    if isinstance(value, (dict, str)):
        return value
    return Broken(f"an object or a text is expected, not {type(value).__name__}")


def _decoded(content: bytes) -> str | Broken:
    if b"\0" in content:
        return Broken("binary")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        place = f" (line {line})" if content.count(b"\n") > 1 else ""
        return Broken(f"not UTF-8 text{place}")


READERS: Final[dict[str, Reader]] = {
    DOCUMENT_SUFFIX: _document,
    ".jsonl": _json_lines,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}
