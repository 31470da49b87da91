"""Rows into items: what is no question is left out, with the reason, and never counts."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from intaglio.data.readers import Row, Rows, read_rows
from intaglio.errors import UserError
from intaglio.evaluation.tasks.item import BadRow, Item, Task

__all__ = ["BadRowError", "Make", "checked", "choice_texts", "gather", "rows_of", "text_of", "turned"]


class BadRowError(Exception):
    """A row that makes no item; the text says why."""


Make = Callable[[Mapping[str, Any], str, str], Item]
"""Makes an item of a row's values, its place in the file and an id to take unless the row has its own."""


def rows_of(files: Iterable[Path], read: Callable[[Path], Iterable[Row]] | None = None) -> Iterator[Row | BadRow]:
    """The rows of several files, and those that cannot be read.

    Args:
        files: in the order in which they count.
        read: reads one; default: by its extension.
    """
    for file in files:
        rows = read(file) if read else read_rows(file, keep_going=True)
        yield from rows
        yield from _skipped(rows)


def gather(rows: Iterable[Row | BadRow], make: Make) -> tuple[tuple[Item, ...], tuple[BadRow, ...]]:
    """The items of the rows, and the rows that make none; those that could not even be read are among them.

    Ids that occur twice are refused the second time.
    """
    items: dict[str, Item] = {}
    bad: list[BadRow] = []
    for index, row in enumerate(rows):
        if isinstance(row, BadRow):
            bad.append(row)
            continue
        try:
            item = make(_object(row.value), row.where, str(index))
            if item.id in items:
                raise BadRowError(f"the id {item.id!r} is that of {items[item.id].where} too")
            items[item.id] = item
        except BadRowError as error:
            bad.append(BadRow(row.where, str(error)))
    return tuple(items.values()), (*bad, *_skipped(rows))


def _skipped(rows: Iterable[Any]) -> list[BadRow]:
    """What could not be read, known when all has been."""
    return [BadRow(one.where, one.reason) for one in rows.skipped] if isinstance(rows, Rows) else []


def checked(task: Task) -> Task:
    """The task, if there is anything to ask in it.

    Raises:
        UserError: there is not; says why of the first row.
    """
    if task.items:
        return task
    why = f" ({task.bad_rows[0].where}: {task.bad_rows[0].why})" if task.bad_rows else ""
    raise UserError(f"nothing in it can be asked{why}", where=task.source, mend="docs/evaluation.md shows the layouts")


def text_of(row: Mapping[str, Any], key: str) -> str:
    """The text that a row has under `key`.

    Raises:
        BadRowError: it has none, or an empty one.
    """
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise BadRowError(f"{key!r} is {'missing' if value is None else repr(value)[:40]}, and should be a text")
    return value


def choice_texts(value: Any, key: str = "choices") -> tuple[str, ...]:
    """At least two texts to choose from.

    Raises:
        BadRowError: they are not.
    """
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) and one.strip() for one in value):
        raise BadRowError(f"{key!r} is not a list of texts")
    if len(value) < 2:
        raise BadRowError(f"{key!r} has fewer than two texts")
    return tuple(value)


def turned(told: Any, choices: tuple[str, ...]) -> int:
    """Which choice is meant: by its text, its letter, or its number counted from 0.

    Raises:
        BadRowError: none of them.
    """
    right = told
    if isinstance(told, str):
        if told in choices:
            return choices.index(told)
        bare = told.strip().upper()
        right = int(bare) if bare.isdecimal() else ord(bare) - ord("A") if len(bare) == 1 else None
    if isinstance(right, bool) or not isinstance(right, int) or not 0 <= right < len(choices):
        raise BadRowError(f"the answer {told!r} is none of the {len(choices)} choices")
    return right


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadRowError("an object is expected, not a text")
    return value
