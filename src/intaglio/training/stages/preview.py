"""`--dry-run` of stages: each as `preview` shows a recipe, though what it starts from is not made yet."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml
from rich.console import Console

from intaglio.checkpoints.save import save_model
from intaglio.training.preview import show_costs
from intaglio.training.recipe import Recipe
from intaglio.training.stages.plan import Stage, Stages
from intaglio.training.start import build_model, build_tokenizer

__all__ = ["preview_stages"]


def preview_stages(stages: Stages, console: Console | None = None) -> None:
    """Prints what every stage would be; reads their data. In place of what a stage makes stands a model of random
    weights, so that costs and samples of later ones are known.

    Raises:
        UserError: what a recipe names is missing or does not fit.
    """
    console = console or Console()
    with tempfile.TemporaryDirectory() as scratch:
        made: dict[str, str] = {}
        for number, (name, stage) in enumerate(stages.stages.items(), 1):
            console.print(f"stage {number} of {len(stages.stages)}, {name}", style="bold", highlight=False)
            fields = yaml.safe_dump(dict(stage.fields), sort_keys=False, allow_unicode=True)
            console.print(fields, markup=False, highlight=False)
            _show(stage, stages.stages, made, console)
            made[name] = _stand_in(stage.recipe(made.__getitem__), Path(scratch) / name)
            console.print()


def _show(stage: Stage, stages: Mapping[str, Stage], made: Mapping[str, str], console: Console) -> None:
    adapters = [other for other in stage.starts_from if stages[other].trains_adapter]
    if adapters:
        console.print(f"what it costs depends on the adapter that {adapters[0]} makes", highlight=False)
        return
    show_costs(stage.recipe(made.__getitem__), console)


def _stand_in(recipe: Recipe, path: Path) -> str:
    """A model of the shape that the stage makes; one that it starts from has that shape."""
    if recipe.model is not None:
        return recipe.model
    save_model(build_model(recipe, tokenizer := build_tokenizer(recipe)), path, tokenizer)
    return str(path)
