"""`key=value` on the command line: what it changes in a recipe read from a file."""

from typing import Any

import yaml

from intaglio.errors import UserError

__all__ = ["apply_change"]


def apply_change(data: dict[str, Any], change: str) -> None:
    """Sets one key of `data`, which may be dotted (`optimizer.learning_rate=1e-4`); the value is YAML.

    Raises:
        UserError: not of that form, or a key below something that holds none.
    """
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise UserError(f"not key=value: {change!r}", where="command line")
    *parents, last = key.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise UserError(f"{parent!r} holds no keys", where=key)
    try:
        data[last] = _number(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise UserError(f"not a YAML value: {text!r}", where=key) from error


def _number(value: Any) -> Any:
    """YAML 1.1 reads 1e-4 as text; nobody else does."""
    try:
        return float(value) if isinstance(value, str) and value[:1] in "+-.0123456789" else value
    except ValueError:
        return value
