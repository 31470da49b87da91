"""The parts of a measurement, each made once: a file keeps those that are finished, and a later call makes the rest."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from intaglio.atlas.findings import Finding
from intaglio.errors import UserError
from intaglio.files import read_json, write_json

__all__ = ["Claims", "Part", "Results", "measure"]

Results = Mapping[str, Any]
"""Name of a part -> what it came to, as JSON."""

Part = Callable[[Path, Results], Any]
"""Makes a part in a folder it may use, out of those before it."""


class Claims(Protocol):
    """A group of claims that are measured together."""

    name: ClassVar[str]
    """Of its files."""

    def plain(self) -> dict[str, Any]:
        """Its sizes, as JSON: parts of other sizes are others."""

    def parts(self) -> dict[str, Part]:
        """What is to be made, in this order."""

    def finding(self, results: Results) -> Finding:
        """What all parts together say."""


def measure(claims: Claims, folder: Path, say: Callable[[str], None]) -> Finding:
    """Makes the parts that are not kept in `folder` yet, and concludes.

    Raises:
        UserError: the folder has parts of other sizes.
    """
    file, parts = folder / f"{claims.name}.json", claims.parts()
    results = _kept(file, claims.plain())
    for place, name in enumerate(parts, 1):
        if name not in results:
            say(f"{claims.name} {place}/{len(parts)}: {name}")
            results[name] = parts[name](folder / claims.name, dict(_before(name, parts, results)))
            write_json(file, {"size": claims.plain(), "parts": results}, indent=None)
    return claims.finding(results)


def _kept(file: Path, size: dict[str, Any]) -> dict[str, Any]:
    if not file.exists():
        return {}
    kept = read_json(file)
    if kept["size"] != size:
        raise UserError("holds measurements of another size", where=str(file), mend="take another --out")
    parts: dict[str, Any] = kept["parts"]
    return parts


def _before(name: str, parts: Mapping[str, Part], results: Results) -> Iterator[tuple[str, Any]]:
    for other in parts:
        if other == name:
            return
        yield other, results[other]
