"""A record of decisions, one after the other, that outlives whoever was making them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from intaglio.errors import UserError
from intaglio.files import read_begun_lines, write_json_lines

__all__ = ["Journal"]


class Journal:
    """Entries by number, each on disk as soon as it is made; a line that was being written at the end is lost.

    Args:
        path: the file; what is there is gone on with.
        settings: what decides the entries; those of the file must be the same.

    Attributes:
        entries: so far; None where there was nothing to enter.

    Raises:
        UserError: the file was begun with other settings, or is no journal.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._path, self._settings = path, dict(settings)
        lines = read_begun_lines(path) if path.exists() else [self._settings]
        self._check(lines[0] if lines else None)
        self.entries: list[Any] = lines[1:]
        self._write()

    def add(self, entry: Any) -> None:
        """Enters the next decision."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        self.entries.append(entry)

    def undo(self) -> None:
        """Takes the last decision back."""
        self.entries.pop()
        self._write()

    def remove(self) -> None:
        """Removes the file: all is decided, and written elsewhere."""
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        write_json_lines(self._path, [self._settings, *self.entries])

    def _check(self, begun: Any) -> None:
        if not isinstance(begun, dict):
            raise UserError("is no journal of ours", where=str(self._path), mend="move it away")
        for key in {**begun, **self._settings}:
            if begun.get(key) != self._settings.get(key):
                what = f"was begun with {key} {begun.get(key)!r}, and this is {self._settings.get(key)!r}"
                mend = "give the same again, another --out, or remove it to begin anew"
                raise UserError(what, where=str(self._path), mend=mend)
