"""Draws docs/pictures: those pictures of the atlas that the README and the pages of docs show.

Beside them, in docs/pictures/data, lie the numbers that each figure was drawn from. So that they are not stale:

- a picture is what the atlas draws from those numbers, letter for letter (`--check`, in seconds);
- the numbers of figures in `QUICK` are what their code finds now, but for rounding (`--check`);
- those of all others take a training, a model or a clock: `make prove` makes them again, and their captions must say
  the same words, with numbers that lie within `WITHIN` of those kept (of `TIMED`, the words alone).

What other code does, or that it changed, is no matter: a key of the code would be stale at each commit. `make pictures`
finds the numbers of `QUICK` anew, those that are missing, and those of figures that it is told by name
(`make pictures ARGS="load-curves roads"`); `--fresh` finds all.
"""

import json
import re
import sys
from collections.abc import Iterator
from math import isclose
from pathlib import Path
from typing import Any

from intaglio.atlas.book import BOOK
from intaglio.atlas.export import pictures_of
from intaglio.atlas.figure import Figure
from intaglio.atlas.keep import data_of
from intaglio.atlas.page import Plate
from intaglio.atlas.svg import as_file
from intaglio.errors import UserError
from intaglio.files import read_json, whole_file, write_json

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
LARGEST = 150_000  # bytes of a picture
QUICK = {
    "family-tree",
    "bidirectional",
    "cells",
    "self-attention",
    "cross-attention",
    "positions",
    "rotary",
    "masks",
    "kv-cache",
    "cache-bytes",
    "shared-heads",
    "activations",
    "gates",
    "paged-attention",
    "continuous-batching",
}
WITHIN = 0.3
TIMED = {"pipelines", "load-curves", "roads"}
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def shown() -> set[str]:
    """Files in docs/pictures that a page shows, without their ending; each with its twin in the other language."""
    pages = [*ROOT.glob("README*.md"), *ROOT.glob("docs/**/*.md")]
    names = {name for page in pages for name in named(page.read_text("utf-8"))}
    plain = {name.removesuffix(".zh") for name in names}
    return plain | {f"{name}.zh" for name in plain}


def named(page: str) -> list[str]:
    """The pictures in a page's text, without their ending."""
    return re.findall(r"pictures/([\w.-]+)\.svg", page)


def figure_of(picture: str) -> Figure:
    """Whose picture that is.

    Raises:
        UserError: the atlas has none of that name.
    """
    name = re.sub(r"\.zh$", "", picture)
    for one in (name, re.sub(r"-\d+$", "", name), "family-tree" if name.startswith("generation-") else ""):
        if one in BOOK:
            return BOOK[one]
    raise UserError(
        f"the atlas has no picture {picture!r}", mend="`intaglio atlas --list` says which figures there are"
    )


def figures() -> dict[str, Figure]:
    """The figures of all pictures that are shown, by name."""
    found = {figure_of(name).name for name in shown()}
    return {name: BOOK[name] for name in BOOK if name in found}


def kept(figure: Figure) -> Path:
    """Where the numbers lie that its pictures were drawn from."""
    return PICTURES / "data" / f"{figure.name}.json"


def drawn(figure: Figure, data: Any) -> Iterator[tuple[Path, str]]:
    """The files of a figure that are shown, and what is in each."""
    wanted = shown()
    for name, title, panels in pictures_of(Plate(figure, data)):
        if name in wanted:
            yield PICTURES / f"{name}.svg", as_file(panels, title)


def make(fresh: list[str]) -> None:
    """Writes all pictures, and removes what is shown no longer.

    Args:
        fresh: figures whose numbers are found anew, besides those of `QUICK` and those that are missing.
    """
    written = set()
    for figure in figures().values():
        if figure.name in {*fresh, *QUICK} or not kept(figure).is_file():
            write_json(kept(figure), rounded(data_of(figure, fresh=figure.name in fresh)), indent=None)
        written |= {kept(figure)}
        for file, text in drawn(figure, read_json(kept(figure))):
            with whole_file(file) as beside:
                beside.write_text(text, encoding="utf-8")
            written |= {file}
        print(figure.name, flush=True)
    for file in {*PICTURES.glob("*.svg"), *PICTURES.glob("data/*.json")} - written:
        file.unlink()


def rounded(value: Any) -> Any:
    """Plain JSON with numbers of six digits, which is more than a picture shows."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def stale() -> Iterator[str]:
    """What is wrong with the files: each picture against its numbers, and which there are."""
    there = {*PICTURES.glob("*.svg")}
    for figure in figures().values():
        if not kept(figure).is_file():
            yield f"{figure.name}: its numbers are not there"
            continue
        for file, text in drawn(figure, read_json(kept(figure))):
            if not file.is_file() or file.read_text("utf-8") != text:
                yield f"{file.name} is not what the atlas draws"
            if len(text.encode()) > LARGEST:
                yield f"{file.name} is larger than {LARGEST} bytes"
    names = {file.name.removesuffix(".svg") for file in there}
    yield from (f"{name}.svg: no page shows it" for name in sorted(names - shown()))
    yield from (f"{name}.svg is shown and not there" for name in sorted(shown() - names))


def alike(ours: Any, theirs: Any, within: float = 1e-3) -> bool:
    """Whether plain JSON values are the same, numbers but for rounding."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return list(ours) == list(theirs) and all(alike(ours[key], theirs[key], within) for key in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(alike(a, b, within) for a, b in zip(ours, theirs, strict=True))
    if isinstance(ours, int | float) and isinstance(theirs, int | float):
        return isclose(ours, theirs, rel_tol=within, abs_tol=1e-5)
    return bool(ours == theirs)


def found_again(figure: Figure) -> str:
    """What its caption says of numbers that are found now; a load of the machine that is told is the one kept."""
    before, now = read_json(kept(figure)), json.loads(json.dumps(figure.data()))
    return figure.caption(now | {"load": before["load"]} if "load" in before else now).en


def says_the_same(ours: str, theirs: str) -> bool:
    """Whether captions have the same words, and numbers within `WITHIN` of each other or two of their last digits."""
    if without_numbers(ours) != without_numbers(theirs):
        return False
    return all(_near(a, b) for a, b in zip(_NUMBER.findall(ours), _NUMBER.findall(theirs), strict=True))


def without_numbers(text: str) -> str:
    """The text, each number a `#`."""
    return _NUMBER.sub("#", text)


def _near(ours: str, theirs: str) -> bool:
    a, b = (float(one.replace(",", "")) for one in (ours, theirs))
    most = max(WITHIN * max(a, b), 2 * min(_last_digit(ours), _last_digit(theirs)))
    return abs(a - b) <= most * (1 + 1e-9)


def _last_digit(number: str) -> float:
    """What one of it is worth: 0.01 of `1.25`, 1e-6 of `2.5e-05`."""
    mantissa, _, power = number.partition("e")
    return 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))


def main() -> None:
    """See above."""
    if "--check" not in sys.argv:
        return make(list(figures()) if "--fresh" in sys.argv else sys.argv[1:])
    wrong = list(stale())
    for name in QUICK & set(figures()) if not wrong else ():
        if not alike(read_json(kept(BOOK[name])), json.loads(json.dumps(BOOK[name].data()))):
            wrong.append(f"{name}: the code finds other numbers")
    sys.exit("\n".join([*wrong, "make pictures"]) if wrong else 0)


if __name__ == "__main__":
    main()
