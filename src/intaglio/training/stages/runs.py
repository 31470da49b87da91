"""The stages of a file, run one after the other, each until it is done; what is done is not done again.

OUT/
    stages.yaml     what is run, shared fields written into every stage
    NAME/           the run of a stage (see `run`), and
        stage.json  what it started from, and, once it has ended, how
    report.*        see `stage_report`
"""

import gc
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from intaglio.data.readers import read_rows
from intaglio.errors import UserError
from intaglio.fetch import sha256_of
from intaglio.files import read_json, write_json
from intaglio.specs import load_yaml, validate
from intaglio.training.batching.data import located, sources_of
from intaglio.training.objectives.rl_specs import RewardSpec
from intaglio.training.recipe import Recipe
from intaglio.training.rl.rewards import function_of
from intaglio.training.run import finish
from intaglio.training.stages.plan import Stages
from intaglio.training.stages.report import make_report

__all__ = ["STAGES", "StagesOutcome", "run_stages"]

Say = Callable[[str], None]
STAGES: Final = "stages.yaml"
_STATE: Final = "stage.json"


@dataclass(frozen=True)
class StagesOutcome:
    """How all of them ended.

    Attributes:
        out: the folder.
        stages: name -> what `stage.json` says of its end.
        report: what the report says; None where none was asked for.
    """

    out: Path
    stages: dict[str, dict[str, Any]]
    report: dict[str, Any] | None


def run_stages(stages: Stages, out: Path, *, say: Say = print, quiet: bool = False) -> StagesOutcome:
    """Runs every stage into a folder of its name, or goes on with it, and reports at the end.

    Raises:
        KeyboardInterrupt: a signal ended it; what it did is saved, and the same call goes on.
        UserError: `out` holds other stages, a stage was made of what is no longer there or is for many processes, or
            see `finish`.
    """
    recipes = stages.recipes(out)
    _require_one_process(stages, recipes)
    for name, recipe in recipes.items():
        _require_same(recipe, out / name)
    _require_all(stages, recipes, say)
    out.mkdir(parents=True, exist_ok=True)
    stages.save(out / STAGES)
    ended: dict[str, dict[str, Any]] = {}
    for number, (name, recipe) in enumerate(recipes.items(), 1):
        title = f"stage {number} of {len(recipes)}, {name}"
        made_of = {other: ended[other]["weights"] for other in stages.stages[name].starts_from}
        ended[name] = _stage(title, recipe, out / name, made_of, say, quiet)
    report = make_report(stages, out, ended, say) if stages.report else None
    return StagesOutcome(out, ended, report)


def _require_one_process(stages: Stages, recipes: Mapping[str, Recipe]) -> None:
    """What a stage makes must be whole before the next begins, which many processes do not know of each other."""
    mend = "put each stage into a recipe of its own, and launch one after the other"
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        raise UserError(f"stages are run by one process, and there are {world}", where="stages", mend=mend)
    for name, recipe in recipes.items():
        if recipe.parallel is not None and recipe.parallel.world > 1:
            what = f"parallel: the layout is for {recipe.parallel.world} processes, and stages are run by one"
            raise UserError(what, where=stages.stages[name].where, mend=mend)


def _require_all(stages: Stages, recipes: Mapping[str, Recipe], say: Say) -> None:
    """Rows and functions that the last stage needs are missed before the first one runs."""
    paths = [source.path for recipe in recipes.values() for source in sources_of(recipe)]
    judges = [spec for recipe in recipes.values() for spec in _judges(recipe)]
    if stages.report is not None:
        paths.append(stages.report.prompts)
        judges += stages.report.scores
    for path in dict.fromkeys(paths):
        next(read_rows(located(path, say)))
    for spec in judges:
        if spec.model is None:
            function_of(spec)


def _judges(recipe: Recipe) -> Sequence[RewardSpec]:
    own: Sequence[RewardSpec] = getattr(recipe.objective, "rewards", ())
    return [*own, *(recipe.compare.rewards if recipe.compare else ())]


def _require_same(recipe: Recipe, run: Path) -> None:
    """A run that was begun is gone on with by its own recipe, so another one would do nothing."""
    if not (run / "recipe.yaml").exists():
        return
    begun = validate(Recipe, load_yaml(run / "recipe.yaml"), str(run / "recipe.yaml"))
    other = next((key for key in Recipe.model_fields if getattr(begun, key) != getattr(recipe, key)), None)
    if other is not None:
        mend = f"leave {other} as it was, or remove {run} to begin the stage again"
        raise UserError(f"was begun with another {other}", where=str(run), mend=mend)


def _stage(title: str, recipe: Recipe, run: Path, made_of: Mapping[str, str], say: Say, quiet: bool) -> dict[str, Any]:
    """What is known of the stage's end, after it has come to it."""
    begun = (run / _STATE).exists()
    state: dict[str, Any] = read_json(run / _STATE) if begun else {"made_of": dict(made_of), "seconds": 0.0}
    changed = next((other for other in made_of if state["made_of"].get(other) != made_of[other]), None)
    if changed is not None:
        what = f"was made of a {changed} that is no longer there"
        raise UserError(what, where=str(run), mend=f"remove {run}, and it is made again")
    if "weights" in state:
        say(f"{title}: done")
        return state
    say(title)
    run.mkdir(exist_ok=True)
    write_json(run / _STATE, state)
    return _finished(recipe, run, state, say, quiet)


def _finished(recipe: Recipe, run: Path, state: dict[str, Any], say: Say, quiet: bool) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        outcome = finish(recipe, run, say=say, quiet=quiet)
    finally:
        state = {**state, "seconds": state["seconds"] + time.perf_counter() - start}
        write_json(run / _STATE, state)
        gc.collect()  # the models of a stage are not needed in the next
    state |= {
        "result": outcome.result.name,
        "steps": outcome.steps,
        "loss": outcome.loss,
        "eval_loss": outcome.eval_loss,
        "weights": _weights(outcome.result),
    }
    write_json(run / _STATE, state)
    return state


def _weights(result: Path) -> str:
    """Says whether two folders hold the same tensors."""
    found = [sha256_of(file) for file in sorted(result.glob("*.safetensors"))]
    return hashlib.sha256(" ".join(found).encode()).hexdigest()[:16]
