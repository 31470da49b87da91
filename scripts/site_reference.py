"""What pages of the reference take from the code when the site is built: every command, and every key of a recipe."""

import inspect
import re
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

__all__ = ["MADE", "commands", "recipe_keys"]


def commands() -> str:
    """A section for each verb of `intaglio`: how it is called, what it is for, its arguments and options."""
    from typer.main import get_command

    from intaglio.cli.main import app

    return "\n".join(_verbs(get_command(app), "intaglio"))


def _verbs(command: Any, path: str) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield from _verb(command, path)
    else:
        if " " in path:
            yield f"## `{path}`\n\n{_text(command.help)}\n"
        for name, one in inner.items():
            yield from _verbs(one, f"{path} {name}")


def _verb(command: Any, path: str) -> Iterator[str]:
    context = command.make_context(path, [], resilient_parsing=True)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    yield f"{'#' * len(path.split())} `{path}`\n\n{_text(command.help)}\n\n    {usage}\n"
    records = [one.get_help_record(context) for one in command.params if one.name != "help"]
    rows = [f"| `{_cell(record[0])}` | {_cell(_text(record[1]))} |" for record in records if record]
    if rows:
        yield "\n".join(["| argument or option | |", "|---|---|", *rows, ""])


def _text(said: str | None) -> str:
    return " ".join(inspect.cleandoc(said or "").split())


def _cell(said: str) -> str:
    return said.replace("|", "\\|")


def recipe_keys() -> str:
    """A table for the recipe, and one for each kind of value that it holds."""
    from intaglio.training.recipe import Recipe
    from intaglio.training.stages.plan import ReportSpec

    seen: dict[type[BaseModel], None] = {}
    _collect(Recipe, seen)
    _collect(ReportSpec, seen)
    return "\n".join(_keys(model) for model in seen)


def _collect(model: type[BaseModel], seen: dict[type[BaseModel], None]) -> None:
    if model in seen:
        return
    seen[model] = None
    for field in model.model_fields.values():
        for inner in _models(field.annotation):
            _collect(inner, seen)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _keys(model: type[BaseModel]) -> str:
    said = _attributes(model)
    about = inspect.cleandoc(model.__doc__ or "").split("\n\n")[0]
    rows = [_row(name, field, said.get(name, "")) for name, field in model.model_fields.items()]
    table = "\n".join(["| key | value | default | |", "|---|---|---|---|", *rows])
    return f"## {model.__name__}\n\n{_text(about)}\n\n{table}\n"


def _row(name: str, field: FieldInfo, said: str) -> str:
    cells = [f"`{field.alias or name}`", _kind(field.annotation) + _bounds(field), _default(field), _cell(said)]
    return f"| {' | '.join(cells)} |"


def _bounds(field: FieldInfo) -> str:
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    found = [
        f"{sign} {getattr(one, name)}" for one in field.metadata for name, sign in signs.items() if hasattr(one, name)
    ]
    return f" {', '.join(found)}" if found else ""


def _attributes(model: type[BaseModel]) -> dict[str, str]:
    """What the docstrings of the class and its bases say of each field."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        section = re.search(r"Attributes:\n((?:    .*\n?|\n)+)", inspect.cleandoc(one.__doc__ or ""))
        entries = re.split(r"^    (?=\S)", section[1], flags=re.MULTILINE)[1:] if section else []
        for entry in entries:
            names, _, text = entry.partition(":")
            found |= {name.strip(): _text(text) for name in names.split(",")}
    return found


def _kind(annotation: Any) -> str:
    """What a value may be, for people: names in code, models as links to their tables."""
    origin, inner = get_origin(annotation), [one for one in get_args(annotation) if one is not type(None)]
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in inner)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_kind(one) for one in inner))
    if origin in (tuple, list):
        return f"list of {_kind(inner[0])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return {str: "text", int: "whole number", float: "number", bool: "`true`, `false`"}.get(annotation, "mapping")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default if field.default is not PydanticUndefined else field.get_default(call_default_factory=True)
    if value is None or value == ():
        return ""
    if isinstance(value, BaseModel):
        return f"`kind: {value.kind}`" if hasattr(value, "kind") else "its own"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


MADE: Final[dict[str, Callable[[], str]]] = {"commands": commands, "recipe-keys": recipe_keys}
"""What `<!-- site: NAME -->` stands for."""
