"""`intaglio ladder`: what a rung of the history claims over the one before, measured here."""

import json as json_module
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intaglio.cli import options

if TYPE_CHECKING:
    from intaglio.atlas.findings import Finding, Verdict
    from intaglio.atlas.ladder import Ladder

app = typer.Typer(help="Measure what the history claims.")

Out = Annotated[Path | None, typer.Option(help="Where parts and pictures are kept; default: ladder[-quick] here.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at the same time, a thread each; default: one a core.")]


@app.callback(invoke_without_command=True)
def ladder(
    context: typer.Context,
    quick: Annotated[bool, typer.Option("--quick", help="A smoke test of half an hour, which decides little.")] = False,
    swap: Annotated[
        list[str] | None,
        typer.Option(help="KEY=VALUE: every rung that changes KEY changes it to VALUE, feed_forward.activation=relu2."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="A rung, with what it is compared with; may be repeated.")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="The rungs and what each changes; nothing is run.")] = False,
    out: Out = None,
    jobs: Jobs = None,
    json: options.Json = False,
) -> None:
    """From GPT-1 to LLaMA, one change at a time: what each does to the loss, and what it costs."""
    if context.invoked_subcommand:
        return
    from dataclasses import replace

    from intaglio.atlas.history import climb
    from intaglio.atlas.ladder import FULL, QUICK

    size = replace(QUICK if quick else FULL, swaps=tuple(swap or ()), only=tuple(only or ()))
    if list_:
        _list(size, json)
        return
    rungs = len(size.climbed)  # what no rung has is refused before anything is said
    _say(f"{rungs} rungs: {'a smoke test, which decides little' if quick else 'hours, which may be interrupted'}")
    folder = out or Path("ladder-quick" if quick else "ladder")
    _report(climb([size], folder, _say, jobs or _cores()), folder, json)


@app.command()
def scaling(
    quick: Annotated[bool, typer.Option("--quick", help="At toy size, in minutes: shows that it runs.")] = False,
    out: Out = None,
    jobs: Jobs = None,
    json: options.Json = False,
) -> None:
    """Larger models and more text: a power law, and the loss of a larger size predicted before it is run."""
    from intaglio.atlas.history import climb
    from intaglio.atlas.scaling import FULL_SCALING, QUICK_SCALING

    folder = out or Path("ladder-quick" if quick else "ladder")
    _report(climb([QUICK_SCALING if quick else FULL_SCALING], folder, _say, jobs or _cores()), folder, json)


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


def _cores() -> int:
    return os.cpu_count() or 1


def _list(size: "Ladder", json: bool) -> None:
    rungs = [size.rungs[name] for name in size.climbed]
    if json:
        told = [{"name": one.name, "title": one.title, "from": one.below, "set": dict(one.changed)} for one in rungs]
        print(json_module.dumps(told, ensure_ascii=False))
        return
    for one in rungs:
        changes = ", ".join(f"{key}={json_module.dumps(value)}" for key, value in one.changed.items())
        print(f"{one.name}: {one.title}{f', from {one.below}' if one.below else ''}: {changes or one.shape}")


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
    return f"{verdict.word}: {verdict.claim} ({mean:.4g} [{low:.4g}, {high:.4g}] {verdict.unit})"
