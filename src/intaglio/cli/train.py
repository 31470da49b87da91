"""`intaglio train`: a recipe becomes a model."""

import json as json_module
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from intaglio.cli import options
from intaglio.errors import UserError

if TYPE_CHECKING:
    from intaglio.training.run import Outcome


def train(
    recipe: Annotated[Path | None, typer.Argument(help="A recipe file, or one of several stages.")] = None,
    changes: Annotated[list[str] | None, typer.Argument(help="out=DIR and key=value changes to the recipe.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    go_on: Annotated[
        bool, typer.Option("--go-on", help="Go on with the run in out=DIR, if one was begun there.")
    ] = False,
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
        if (resume / "stages.yaml").exists():
            _run_stages(resume / "stages.yaml", [], resume, json)
        else:
            _report(running.resume(resume, say=_say), json)
        return
    if recipe is not None and _several(recipe):
        _start_stages(recipe, changes or [], dry_run, json)
        return
    outcome = _start(recipe, changes or [], dry_run, go_on)
    if outcome is not None:
        _report(outcome, json)


def _start(path: Path | None, changes: list[str], dry_run: bool, go_on: bool) -> "Outcome | None":
    from intaglio.training import run as running
    from intaglio.training.preview import preview
    from intaglio.training.recipe import load_recipe

    if path is None:
        raise UserError("give a recipe or --resume RUN", where="train")
    out, changes = _apart(changes)
    recipe = load_recipe(path, changes)
    if go_on and (_one(out) / "recipe.yaml").exists():
        return running.resume(_one(out), say=_say, recipe=recipe)
    if dry_run:
        preview(recipe)
        return None
    return running.train(recipe, _one(out), say=_say)


def _apart(changes: list[str]) -> tuple[list[str], list[str]]:
    """Where it goes, and what changes in the recipe."""
    out = [change.removeprefix("out=") for change in changes if change.startswith("out=")]
    return out, [change for change in changes if not change.startswith("out=")]


def _one(out: list[str]) -> Path:
    if len(out) != 1:
        raise UserError("say where the run goes: out=DIR", where="train")
    return Path(out[0])


def _several(path: Path) -> bool:
    from intaglio.training.stages.plan import has_stages

    return has_stages(path)


def _start_stages(path: Path, changes: list[str], dry_run: bool, json: bool) -> None:
    from intaglio.training.stages.plan import load_stages
    from intaglio.training.stages.preview import preview_stages

    out, changes = _apart(changes)
    if dry_run:
        preview_stages(load_stages(path, changes))
    else:
        _run_stages(path, changes, _one(out), json)


def _run_stages(path: Path, changes: list[str], out: Path, as_json: bool) -> None:
    """The same call again goes on where it stopped."""
    from intaglio.training.stages.pages import report_lines
    from intaglio.training.stages.plan import load_stages
    from intaglio.training.stages.runs import run_stages

    try:
        ended = run_stages(load_stages(path, changes), out, say=_say)
    except KeyboardInterrupt:
        _say(f"stopped and saved; go on with: intaglio train --resume {out}")
        raise
    if as_json:
        print(json_module.dumps({"run": str(out), "stages": ended.stages, "report": ended.report}, ensure_ascii=False))
        return
    for line in report_lines(ended.report) if ended.report else ():
        print(line)
    print(out)


def _say(line: str) -> None:
    if _speaks():
        print(line, file=sys.stderr, flush=True)


def _speaks() -> bool:
    """Whether this process is the only one, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def _report(outcome: "Outcome", as_json: bool) -> None:
    from intaglio.training.processes.ranks import start_line

    values = {
        "run": str(outcome.run),
        "result": str(outcome.result),
        "steps": outcome.steps,
        "loss": outcome.loss,
        "eval_loss": outcome.eval_loss,
    }
    if outcome.stopped is not None:
        _say(f"stopped and saved; go on with: {start_line()} train --resume {outcome.run}")
    if _speaks():
        print(json_module.dumps(values) if as_json else outcome.result)
    if outcome.stopped is not None:
        sys.exit(128 + outcome.stopped)
