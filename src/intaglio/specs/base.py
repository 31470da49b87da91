"""What every spec is: frozen data with known keys, read from and written to YAML or JSON. No torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_serializer
from pydantic import SerializerFunctionWrapHandler as Handler

from intaglio.errors import UserError, nearest
from intaglio.files import read_text

__all__ = ["DTYPE_BYTES", "Spec", "dtype_bytes", "explain", "kind_or", "load_yaml", "validate"]

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of `dtype` (`float32`, `bfloat16`, ...).

    Raises:
        UserError: unknown dtype; names the nearest known one.
    """
    if dtype not in DTYPE_BYTES:
        raise UserError(f"unknown dtype {dtype!r}", mend=nearest(dtype, DTYPE_BYTES))
    return DTYPE_BYTES[dtype]


class Spec(BaseModel):
    """A piece of a description. Frozen; unknown keys are errors; equal when every field is equal."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def plain(self) -> dict[str, Any]:
        """The spec as plain data, defaults left out: what a YAML file or a checkpoint holds."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @model_serializer(mode="wrap")
    def _keep_kind(self, handler: Handler) -> dict[str, Any]:
        """`kind` is written even where it is the default: a reader chooses the class by it."""
        data: dict[str, Any] = handler(self)
        return {"kind": self.kind, **data} if hasattr(self, "kind") else data

    def updated(self, **changes: Any) -> Self:
        """A validated copy with `changes` to its fields."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self).model_validate({**fields, **changes})


def load_yaml(path: Path) -> Any:
    """The value in a YAML file.

    Raises:
        UserError: missing, unreadable or not YAML; names the file and the line.
    """
    try:
        return yaml.safe_load(read_text(path))
    except yaml.YAMLError as error:
        raise UserError(f"not valid YAML: {error}", where=str(path)) from error


def validate(kind: Any, data: Any, where: str = "spec") -> Any:
    """`data` as the spec type `kind` (a class or an annotated union).

    Raises:
        UserError: the first thing wrong, with its key; an unknown key with the nearest known one.
    """
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        raise explain(error, where, kind) from error


def kind_or(default: str) -> Callable[[Any], str]:
    """A discriminator for a union of specs: the `kind` that is given, else `default`."""

    def kind_of(value: Any) -> str:
        kind = value.get("kind", default) if isinstance(value, dict) else getattr(value, "kind", default)
        return str(kind)

    return kind_of


def explain(error: ValidationError, where: str, kind: Any = None) -> UserError:
    """The first thing wrong with a `kind` as one line; an unknown key comes first, since it explains a missing one."""
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    path = list(first["loc"])
    key = ".".join(str(part) for part in _without_tags(path))
    if first["type"] == "extra_forbidden":
        return UserError(f"unknown key {key!r}", where=where, mend=nearest(str(path[-1]), _keys_beside(kind, path)))
    if first["type"] == "union_tag_invalid":
        tag, kinds = first["ctx"]["tag"], first["ctx"]["expected_tags"].replace("'", "").split(", ")
        return UserError(f"{key}: unknown kind {tag!r}", where=where, mend=nearest(tag, kinds))
    reason = first["msg"].removeprefix("Value error, ")
    return UserError(f"{key}: {reason}" if key else reason, where=where)


def _without_tags(path: list[int | str]) -> list[int | str]:
    """The keys a user wrote: pydantic puts the tag of the chosen class behind a union's key."""
    return [part for before, part in zip([None, *path], path, strict=False) if not _is_tag(before, part)]


def _is_tag(before: int | str | None, part: int | str) -> bool:
    """Layers are tagged behind their number, other parts behind their key; what stands first in a layer is a key."""
    if part in ("block", "cycle"):
        return isinstance(before, int)
    tags = {tag for cls in _specs(Spec) for tag in (_kind(cls), cls.__name__)}
    named = part in tags or str(part).startswith(("literal[", "function-after["))
    return named and isinstance(before, str) and before not in ("block", "cycle")


def _keys_beside(kind: Any, path: list[int | str]) -> set[str]:
    """The keys that could stand where the last key of `path` does: `path` is followed through the fields of `kind`."""
    classes = _classes_in(kind)
    for part in path[:-1]:
        fields = [cls.model_fields[str(part)].annotation for cls in classes if part in cls.model_fields]
        tagged = [cls for cls in classes if part in (_kind(cls), _tag(cls), cls.__name__)]
        inner = [cls for annotation in fields for cls in _classes_in(annotation)]
        classes = inner or tagged or classes
    return {name for cls in classes for name in cls.model_fields}


def _classes_in(annotation: Any) -> list[type[Spec]]:
    """The specs an annotation names, unions and tuples looked into."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return [annotation]
    return [cls for part in get_args(annotation) for cls in _classes_in(part)]


def _tag(cls: type[Spec]) -> str:
    return cls.__name__.removesuffix("Spec").lower()


def _kind(cls: type[Spec]) -> str | None:
    field = cls.model_fields.get("kind")
    return field.default if field else None


def _specs(cls: type[Spec]) -> list[type[Spec]]:
    return [cls, *(grand for child in cls.__subclasses__() for grand in _specs(child))]
