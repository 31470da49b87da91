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
    findings = climb(QUICK if quick else FULL, folder, _say)
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
