"""`key=value` on the command line: what it changes in a recipe read from a file."""

from typing import Any

import yaml

from intaglio.errors import UserError

__all__ = ["apply_change", "read_change"]


def apply_change(data: dict[str, Any], change: str) -> None:
    """Sets one key of `data`, which may be dotted (`optimizer.learning_rate=1e-4`); the value is YAML.

    Of a list each item goes by its number, from 0: `architecture.layers.0.placement=post`.

    Raises:
        UserError: not of that form, a key below something that holds none, or no such item.
    """
    key, value = read_change(change)
    *parents, last = key.split(".")
    holder: Any = data
    for parent in parents:
        holder = holder[_place(holder, parent, key)] if isinstance(holder, list) else holder.setdefault(parent, {})
        if not isinstance(holder, dict | list):
            raise UserError(f"{parent!r} holds no keys", where=key)
    holder[_place(holder, last, key) if isinstance(holder, list) else last] = value


def _place(items: list[Any], name: str, key: str) -> int:
    if not (name.isdecimal() and int(name) < len(items)):
        mend = f"a list of {len(items)}: its items are numbered from 0"
        raise UserError(f"there is no item {name!r}", where=key, mend=mend)
    return int(name)


def read_change(change: str) -> tuple[str, Any]:
    """The key and the value of `key=value`; the value is YAML.

    Raises:
        UserError: not of that form.
    """
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise UserError(f"not key=value: {change!r}", where="command line")
    try:
        return key, _number(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise UserError(f"not a YAML value: {text!r}", where=key) from error


def _number(value: Any) -> Any:
    """YAML 1.1 reads 1e-4 as text; nobody else does."""
    try:
        return float(value) if isinstance(value, str) and value[:1] in "+-.0123456789" else value
    except ValueError:
        return value
