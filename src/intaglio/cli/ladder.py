"""`intaglio ladder`: what one rung of the history claims over the one before, measured here."""

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intaglio.cli import options

if TYPE_CHECKING:
    from intaglio.atlas.findings import Finding, Verdict

app = typer.Typer(help="Measure what the history claims.", no_args_is_help=True)


@app.callback()
def ladder() -> None:
    """Measure what the history claims."""


@app.command()
def history(
    quick: Annotated[bool, typer.Option("--quick", help="At toy size, in two minutes: shows that it runs.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Where parts and pictures are kept; default: ladder-history[-quick].")
    ] = None,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """RNN, LSTM, GRU and Transformer; vanishing gradients; the bottleneck; steps one after the other."""
    import torch

    from intaglio.atlas.history import FULL, QUICK, climb

    if threads:
        torch.set_num_threads(threads)
    folder = out or Path("ladder-history-quick" if quick else "ladder-history")
    _report(climb(QUICK if quick else FULL, folder, _say), folder, json)


@app.command()
def compare(
    recipes: Annotated[list[str], typer.Argument(help="Two recipe files or more, and key=value changes to all.")],
    rate: Annotated[
        list[float] | None,
        typer.Option(help="A learning rate to choose from; several may be given. Default: the recipes'."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=5, help="How many are measured.")] = 3,
    minutes: Annotated[float | None, typer.Option(help="Of computing a run; default: the recipes' own steps.")] = None,
    out: Annotated[Path, typer.Option(help="Where parts and pictures are kept.")] = Path("ladder-compare"),
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Recipes against each other, with equal budget and tuning: held-out answers, with intervals."""
    import torch

    from intaglio.atlas.history import climb
    from intaglio.atlas.rivals import Rivals

    if threads:
        torch.set_num_threads(threads)
    files, changes = (tuple(r for r in recipes if ("=" in r) is change) for change in (False, True))
    rivals = Rivals(files, tuple(rate or ()), minutes=minutes, changes=changes, seeds=seeds)
    _report(climb([rivals], out, _say), out, json)


def _report(findings: "dict[str, Finding]", folder: Path, json: bool) -> None:
    if json:
        print(json_module.dumps({name: found.plain() for name, found in findings.items()}, ensure_ascii=False))
        return
    for name, found in findings.items():
        _show(found, folder / f"{name}.png")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(found: "Finding", picture: Path) -> None:
    print(f"{found.title}\n")
    widths = [max(map(len, column)) for column in zip(found.columns, *found.rows, strict=True)]
    for row in (found.columns, *found.rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print()
    for verdict in found.verdicts:
        print(_sentence(verdict))
    print(f"{picture}\n")


def _sentence(verdict: "Verdict") -> str:
    mean, low, high = verdict.interval
    word = "shown" if verdict.shown else "not shown"
    return f"{word}: {verdict.claim} ({mean:.4g} [{low:.4g}, {high:.4g}] {verdict.unit})"
