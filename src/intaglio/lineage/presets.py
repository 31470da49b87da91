"""Presets: a generation is a model with `$holes` and a table of sizes, each row filling the holes.

Nothing is parsed before it is asked for: a preset reads its generation's file, and builds its spec on first use.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from intaglio.errors import UserError, nearest
from intaglio.lineage.units import parse_count
from intaglio.specs import ModelSpec, load_yaml, validate_model

__all__ = ["Generation", "Preset", "family_tree", "find_preset", "generations", "preset", "presets"]

FOLDER = Path(__file__).parent / "generations"


@dataclass(frozen=True, eq=False)
class Generation:
    """One step of the family tree.

    Attributes:
        name: what its presets' names begin with, mostly.
        parent: name of the generation it descends from; None at the root.
        source: where sizes and text come from.
        changed: what it took away or changed, and why.
        representative: name of the preset that stands for it in the tree.
    """

    name: str
    title: str
    year: int
    parent: str | None
    source: str
    changed: str
    representative: str
    model: dict[str, Any]
    sizes: dict[str, dict[str, Any]]

    @cached_property
    def presets(self) -> tuple["Preset", ...]:
        """Every size, in the order of the file."""
        return tuple(_preset(name, self, dict(row)) for name, row in self.sizes.items())


@dataclass(frozen=True, eq=False)
class Preset:
    """One published model.

    Attributes:
        published_as: parameters as the source states them (117M); None where none were published.
        published_active_as: the same for the parameters that one token meets, in a mixture of experts.
        note: why counted and published parameters differ, or how the source contradicts itself.
        same_as: name of the preset whose network this is, where only the training changed.
        holes: what this size puts into the generation's model.
    """

    name: str
    generation: Generation
    published_as: str | None
    published_active_as: str | None
    note: str
    same_as: str | None
    holes: dict[str, Any]

    @property
    def year(self) -> int:
        return self.generation.year

    @property
    def title(self) -> str:
        """The generation's name as people write it."""
        return self.generation.title

    @property
    def published(self) -> int | None:
        """`published_as` as a number."""
        return parse_count(self.published_as) if self.published_as else None

    @property
    def published_active(self) -> int | None:
        """`published_active_as` as a number."""
        return parse_count(self.published_active_as) if self.published_active_as else None

    @cached_property
    def spec(self) -> ModelSpec:
        """The model; built from data on first use."""
        if self.same_as:
            return preset(self.same_as).spec
        return validate_model(_filled(self.generation.model, self.holes), self.name)


def preset(name: str) -> Preset:
    """The preset called `name`.

    Raises:
        UserError: no such preset; names the nearest ones.
    """
    found = find_preset(name)
    if found is None:
        raise UserError(f"unknown preset {name!r}", mend=nearest(name, [one.name for one in presets()]))
    return found


def find_preset(name: str) -> Preset | None:
    """The preset called `name`, if there is one; files whose name begins alike are parsed first."""
    for file in sorted(_files(), key=lambda file: -_alike(file.stem, name)):
        for found in _generation(file).presets:
            if found.name == name:
                return found
    return None


def _alike(a: str, b: str) -> int:
    """How many characters two names begin with in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def presets() -> list[Preset]:
    """Every preset, in the order of the family tree."""
    return [one for generation in generations() for one in generation.presets]


def generations() -> list[Generation]:
    """Every generation, parents before children."""
    return [generation for _, generation in family_tree()]


def family_tree() -> list[tuple[str, Generation]]:
    """Every generation, depth first, siblings by year, each with the lines that draw the tree before its name."""
    everyone = sorted((_generation(file) for file in _files()), key=lambda one: one.year)
    return list(_branches(None, "", everyone))


def _branches(parent: str | None, lines: str, everyone: list[Generation]) -> Iterator[tuple[str, Generation]]:
    children = [one for one in everyone if one.parent == parent]
    for child in children:
        last = child is children[-1]
        root = parent is None
        yield "" if root else lines + ("└" if last else "├"), child
        yield from _branches(child.name, "" if root else lines + (" " if last else "│"), everyone)


@cache
def _files() -> tuple[Path, ...]:
    return tuple(sorted(FOLDER.glob("*.yaml")))


@cache
def _generation(file: Path) -> Generation:
    return Generation(name=file.stem, **{"model": {}, **load_yaml(file)})


def _preset(name: str, generation: Generation, row: dict[str, Any]) -> Preset:
    return Preset(
        name=name,
        generation=generation,
        published_as=row.pop("published"),
        published_active_as=row.pop("published_active", None),
        note=row.pop("note", ""),
        same_as=row.pop("same_as", None),
        holes=row,
    )


def _filled(template: Any, holes: dict[str, Any]) -> Any:
    """`template` with every `$name` replaced by `holes[name]`; layers that come 0 times are left out."""
    if isinstance(template, dict):
        return {key: _filled(value, holes) for key, value in template.items()}
    if isinstance(template, list):
        entries = [_filled(entry, holes) for entry in template]
        return [entry for entry in entries if entry.get("repeat") != 0]
    if isinstance(template, str) and template.startswith("$"):
        return holes[template[1:]]
    return template
