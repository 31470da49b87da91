"""What a row has under a key, as the kind of value that a format wants there, or one line that says why not.

Lists may be written as JSON in a text, as CSV needs it; there numbers and truth values are texts too.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from intaglio.errors import UserError

__all__ = ["blamed_on", "listed", "number_at", "read_list", "read_string", "tools_of", "truth_at", "turns_of"]


@contextmanager
def blamed_on(where: str) -> Iterator[None]:
    """Puts the row's place before the key that an error names."""
    try:
        yield
    except UserError as error:
        place = f"{where}: {error.where}" if error.where else where
        raise UserError(error.what, where=place, mend=error.mend) from error


def read_string(value: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """The text under `key`, or `default` where nothing is.

    Raises:
        UserError: it is missing, or no text.
    """
    text = value.get(key)
    if text is None and default is not None:
        return default
    if not isinstance(text, str):
        raise UserError("is missing" if text is None else f"is {type(text).__name__}, not a text", where=key)
    return text


def read_list(value: Mapping[str, Any], key: str) -> list[Any]:
    """The list under `key`.

    Raises:
        UserError: it is none.
    """
    items = listed(value.get(key))
    if items is None:
        raise UserError(f"is {type(value.get(key)).__name__}, not a list", where=key)
    return items


def listed(value: Any) -> list[Any] | None:
    """A list, or the one that a text spells as JSON; else None."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return list(value) if isinstance(value, (list, tuple)) else None


def turns_of(value: Any) -> list[Any] | None:
    """As `listed`; but a prompt may well be JSON that is no conversation."""
    turns = listed(value)
    if isinstance(value, str) and not all(isinstance(turn, Mapping) and "role" in turn for turn in turns or [None]):
        return None
    return turns


def tools_of(value: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...] | None:
    """The JSON schemas of functions under `tools`, None where there are none.

    Raises:
        UserError: it is no list of objects.
    """
    if not value.get("tools"):
        return None
    tools = read_list(value, "tools")
    if not all(isinstance(tool, Mapping) for tool in tools):
        raise UserError("is not a list of objects", where="tools")
    return tuple(tools) or None


def number_at(value: Any, where: str) -> float:
    """A finite number, or the one that a text spells.

    Raises:
        UserError: it is none.
    """
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"is {value!r}, not a number", where=where)
    return number


def truth_at(value: Any) -> bool | None:
    """True or false, or what a text spells of them; else None."""
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower())
    return value if isinstance(value, bool) else None
