"""`intaglio train`: a recipe becomes a model."""

import json as json_module
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intaglio.cli import options
from intaglio.errors import UserError

if TYPE_CHECKING:
    from intaglio.training.run import Outcome


def train(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe file.")] = None,
    changes: Annotated[list[str] | None, typer.Argument(help="out=DIR and key=value changes to the recipe.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be trained on, and train nothing.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Train a model by a recipe, or go on with a run."""
    from intaglio.training import run as running

    if resume is not None:
        if recipe is not None or changes:
            raise UserError("a resumed run has its recipe already", where="--resume", mend="leave the rest out")
        _report(running.resume(resume, say=_say), json)
        return
    outcome = _start(recipe, changes or [], dry_run)
    if outcome is not None:
        _report(outcome, json)


def _start(path: Path | None, changes: list[str], dry_run: bool) -> "Outcome | None":
    from intaglio.training import run as running
    from intaglio.training.preview import preview
    from intaglio.training.recipe import load_recipe

    if path is None:
        raise UserError("give a recipe or --resume RUN", where="train")
    out = [change.removeprefix("out=") for change in changes if change.startswith("out=")]
    recipe = load_recipe(path, [change for change in changes if not change.startswith("out=")])
    if dry_run:
        preview(recipe)
        return None
    if len(out) != 1:
        raise UserError("say where the run goes: out=DIR", where="train")
    return running.train(recipe, Path(out[0]), say=_say)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _report(outcome: "Outcome", as_json: bool) -> None:
    values = {
        "run": str(outcome.run),
        "result": str(outcome.result),
        "steps": outcome.steps,
        "loss": outcome.loss,
        "eval_loss": outcome.eval_loss,
    }
    if outcome.stopped is not None:
        _say(f"stopped and saved; go on with: intaglio train --resume {outcome.run}")
    print(json_module.dumps(values) if as_json else outcome.result)
    if outcome.stopped is not None:
        sys.exit(128 + outcome.stopped)
