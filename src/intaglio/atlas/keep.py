"""Data of figures, kept under a key of the code that made them: a changed file makes a new key.

The code of a figure is its module with every module of ours that this one imports, directly or not, and the data files
beside each; what only draws is left out. The version of torch counts too.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from intaglio.atlas.figure import Figure
from intaglio.files import home, read_json, write_json

__all__ = ["code_of", "data_of", "key_of"]

_PACKAGE: Final = Path(__file__).parents[1]
_IMPORT: Final = re.compile(r"^\s*(?:from (intaglio[\w.]*) import (\([^)]*\)|[^\n]*)|import (intaglio[\w.]*))", re.M)
_DRAWING: Final = {
    Path(__file__).with_name(f"{name}.py") for name in ("charts", "matrices", "palette", "svg", "wiring")
}
_DATA: Final = {".yaml", ".cpp", ".h", ".json", ".jinja"}


def data_of(figure: Figure, *, fresh: bool = False) -> Any:
    """The figure's data: kept ones where code, sizes and inputs are the same, else made now and kept.

    Args:
        figure: whose.
        fresh: make them whatever is kept.

    Raises:
        UserError: see `Figure.data`; or the folder cannot be written.
    """
    file = home() / "atlas" / f"{figure.name}-{key_of(figure)}.json"
    if file.is_file() and not fresh:
        return read_json(file)
    write_json(file, figure.data(), indent=None)
    return read_json(file)  # so that fresh data and kept ones are alike: JSON has no tuples


def key_of(figure: Figure) -> str:
    """Sixteen letters that change with the figure's code, sizes and inputs."""
    digest = hashlib.sha256(json.dumps([figure.plain(), figure.inputs(), version("torch")]).encode())
    for file in code_of(type(figure).__module__):
        digest.update(_digest(file))
    return digest.hexdigest()[:16]


def code_of(module: str) -> list[Path]:
    """The files that a module of ours is made of: its own, all that it imports, and the data beside them."""
    seen: set[Path] = set()
    waiting = list(_files(module))
    while waiting:
        file = waiting.pop()
        if file not in seen and file not in _DRAWING:
            seen.add(file)
            waiting += [found for name in _imported(file) for found in _files(name)]
    data = {found for file in seen for found in _beside(file.parent)}
    return sorted(seen | data)


def _files(module: str) -> Iterator[Path]:
    """Of a module, and of the packages around it, whose `__init__` runs before it."""
    parts = module.split(".")[1:]
    for end in range(1, len(parts) + 1):
        path = _PACKAGE.joinpath(*parts[:end])
        yield from (file for file in (path.with_suffix(".py"), path / "__init__.py") if _there(file))


@cache
def _imported(file: Path) -> tuple[str, ...]:
    """Modules of ours that a file names in an import, and everything that may be one."""
    found = []
    for source, names, plain in _IMPORT.findall(file.read_text("utf-8")):
        found.append(source or plain)
        found += [f"{source}.{name}" for name in re.findall(r"\w+", names)] if source else []
    return tuple(found)


@cache
def _beside(folder: Path) -> tuple[Path, ...]:
    """Data in a package, and in its folders that hold no code."""
    here = [path for path in folder.iterdir() if path.suffix in _DATA]
    inner = [path for path in folder.iterdir() if path.is_dir() and not any(path.glob("*.py"))]
    return (*here, *(file for one in inner for file in one.iterdir() if file.suffix in _DATA))


@cache
def _there(file: Path) -> bool:
    return file.is_file()


@cache
def _digest(file: Path) -> bytes:
    return hashlib.sha256(file.read_bytes()).digest()
