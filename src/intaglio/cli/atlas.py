"""`intaglio atlas`: every claim of the story as a picture, drawn from the running code."""

import json as json_module
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intaglio.cli import options

if TYPE_CHECKING:
    from intaglio.atlas.figure import Figure
    from intaglio.atlas.page import Plate

__all__ = ["atlas"]


def atlas(
    only: Annotated[list[str] | None, typer.Option(help="One figure by its name; may be given several times.")] = None,
    out: Annotated[Path | None, typer.Option(help="A folder that gets the page and each figure as SVG.")] = None,
    list_them: Annotated[bool, typer.Option("--list", help="Say which figures there are.")] = False,
    png: Annotated[bool, typer.Option("--png", help="With --out: PNG too, by the Chromium of this machine.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Make every run again, whatever is kept.")] = False,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Write atlas.html: the story's claims as figures, drawn from small runs of this code, in English and Chinese."""
    from intaglio.atlas.book import chosen

    figures = chosen(only or [])
    if list_them:
        _list(figures, json)
        return
    if threads:
        import torch

        torch.set_num_threads(threads)
    plates = [_plate(figure, fresh) for figure in figures]
    if json:
        print(json_module.dumps({one.figure.name: _plain(one) for one in plates}, ensure_ascii=False))
        return
    _write(plates, out, png)


def _list(figures: "list[Figure]", json: bool) -> None:
    if json:
        rows = [{"name": one.name, "title": one.title._asdict(), "claim": one.claim._asdict()} for one in figures]
        print(json_module.dumps(rows, ensure_ascii=False))
        return
    width = max(len(one.name) for one in figures)
    for one in figures:
        print(f"{one.name.ljust(width)}  {one.title.en} · {one.title.zh}")


def _plate(figure: "Figure", fresh: bool) -> "Plate":
    """The figure with its data; where it lacks something, with the reason."""
    from intaglio.atlas.keep import data_of
    from intaglio.atlas.page import Plate
    from intaglio.errors import UserError

    begun = time.monotonic()
    try:
        plate = Plate(figure, data_of(figure, fresh=fresh))
    except UserError as error:
        print(f"{figure.name}: not drawn: {error}", file=sys.stderr, flush=True)
        return Plate(figure, missing=str(error))
    print(f"{figure.name}: {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)
    return plate


def _plain(plate: "Plate") -> object:
    return {"missing": plate.missing} if plate.missing else plate.data


def _write(plates: "list[Plate]", out: Path | None, png: bool) -> None:
    from intaglio.atlas.export import write_figures, write_page

    if out:
        write_figures(out, plates, png=png)
    path = (out or Path()) / "atlas.html"
    write_page(path, plates, f"{time.strftime('%Y-%m-%d')} · Python {platform.python_version()} · {platform.machine()}")
    print(path)
