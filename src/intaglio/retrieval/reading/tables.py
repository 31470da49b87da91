"""Tables by rows: each row with the names of its columns, so that a passage says what its values are."""

import csv
import io
import json
from collections.abc import Iterator
from typing import Any, Final

from intaglio.retrieval.chunks import Block
from intaglio.retrieval.reading.unreadable import Unreadable, decoded

__all__ = ["read_csv", "read_json", "read_jsonl", "read_tsv"]

_LONGEST_FIELD: Final = 1 << 24


def read_csv(content: bytes) -> Iterator[Block]:
    """The records of a table whose first row names its columns.

    Raises:
        Unreadable: not text, or not CSV.
    """
    yield from _records(content, ",")


def read_tsv(content: bytes) -> Iterator[Block]:
    """The same with tabs."""
    yield from _records(content, "\t")


def read_jsonl(content: bytes) -> Iterator[Block]:
    """An object, or any other value, a line.

    Raises:
        Unreadable: a line that is not JSON.
    """
    for number, line in enumerate(decoded(content).split("\n"), start=1):
        if line.strip():
            yield Block(_written(_parsed(line, number)), number, number)


def read_json(content: bytes) -> Iterator[Block]:
    """The items of a list, or one value; a JSON file has no lines to speak of, so that all stand on the first.

    Raises:
        Unreadable: not JSON.
    """
    value = _parsed(decoded(content), 1)
    for item in value if isinstance(value, list) else [value]:
        yield Block(_written(item), 1, 1)


def _records(content: bytes, delimiter: str) -> Iterator[Block]:
    csv.field_size_limit(_LONGEST_FIELD)
    rows = csv.reader(io.StringIO(decoded(content), newline=""), delimiter=delimiter)
    try:
        names = next(rows, [])
        line = rows.line_num + 1
        for row in rows:
            text = "; ".join(_pairs(names, row))
            if text:
                yield Block(text, line, rows.line_num)
            line = rows.line_num + 1
    except csv.Error as error:
        raise Unreadable(f"not CSV from line {rows.line_num} on: {error}") from error


def _pairs(names: list[str], row: list[str]) -> Iterator[str]:
    for i, value in enumerate(row):
        if value.strip():
            yield f"{names[i]}: {value.strip()}" if i < len(names) and names[i].strip() else value.strip()


def _parsed(text: str, line: int) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise Unreadable(f"line {line} is not JSON: {error}") from error


def _written(value: Any) -> str:
    """`key: value` a line; whatever is not text stays JSON."""
    if isinstance(value, dict):
        return "\n".join(f"{key}: {_written_inside(inner)}" for key, inner in value.items())
    return _written_inside(value)


def _written_inside(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
