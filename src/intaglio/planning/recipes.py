"""The part of a recipe's file that memory depends on, read without the training code. No torch.

Only the keys that matter here are validated; `intaglio train --dry-run` looks at all of them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from intaglio.errors import UserError, nearest
from intaglio.planning.jobs import JOBS, Checkpointing, JobSpec, Precision
from intaglio.planning.refusals import require_whole_step
from intaglio.specs import load_yaml, validate
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.base import Spec
from intaglio.specs.parallel import ParallelSpec
from intaglio.specs.quantization import QuantizationSpec

__all__ = ["Recipe", "is_recipe", "job_of", "keys_of", "read_recipe", "recipe_of"]

_KEYS = {
    "dtype": "precision",
    "sequence": "max_length",
    "optimizer": "optimizer.kind",
    "chunk": "objective.chunk",
    "at_once": "objective.at_once",
    "value": "objective.value",
}
"""What a recipe calls a job's fields, where it has another name for them."""

_REFERENCES = {"adapter_off": "off", "copy": "model", "precomputed": "stored", "auto": None}


class Recipe(Spec):
    """What is read of a recipe; keys as there.

    Attributes:
        model: the model's name, a preset, a directory, or a spec of its own.
    """

    model: str | dict[str, Any]
    adapter: LoRASpec | None = None
    quantization: QuantizationSpec | None = None
    max_length: int = Field(1024, gt=1)
    micro_batch: int = Field(4, gt=0)
    accumulation: int = Field(1, gt=0)
    precision: Precision = "bfloat16"
    checkpointing: Checkpointing = 0
    optimizer: Literal["adamw", "paged_adamw", "muon"] = "adamw"
    compile: bool = False
    neftune: float = Field(0.0, ge=0)
    objective: dict[str, Any] = Field({})
    parallel: ParallelSpec = ParallelSpec()


def is_recipe(name: str) -> bool:
    """Whether what a user names is a recipe's file."""
    return name.endswith((".yaml", ".yml")) and Path(name).is_file()


def read_recipe(path: Path) -> Recipe:
    """What a file says.

    Raises:
        UserError: no such file, no mapping, several stages, or see `recipe_of`.
    """
    data = load_yaml(path)
    if not isinstance(data, dict):
        raise UserError("not a mapping of keys to values", where=str(path))
    if "stages" in data:
        what = "a recipe of several stages: each has a plan of its own"
        raise UserError(
            what, where=str(path), mend="plan the stages' models by name, or see `intaglio train --dry-run`"
        )
    return recipe_of(data, str(path))


def recipe_of(data: Mapping[str, Any], where: str) -> Recipe:
    """What a recipe's plain data say.

    Raises:
        UserError: no model, an adapter that is gone on with, or a value that does not fit.
    """
    given = {key: data[key] for key in Recipe.model_fields if key in data}
    if "model" not in given and "architecture" in data:
        given["model"] = data["architecture"]
    if "model" not in given:
        raise UserError("names neither model nor architecture", where=where, mend="is it a recipe?")
    if isinstance(given.get("optimizer"), Mapping):
        given["optimizer"] = given["optimizer"].get("kind", "adamw")
    if isinstance(given.get("adapter"), Mapping) and "from" in given["adapter"]:
        what = "goes on with an adapter, whose sizes stand in its folder"
        raise UserError(what, where=f"{where}: adapter", mend="see `intaglio train --dry-run`")
    recipe: Recipe = validate(Recipe, given, where)
    return recipe


def job_of(recipe: Recipe, where: str) -> JobSpec:
    """The job that it describes.

    Raises:
        UserError: an objective that is planned nowhere (it trains no decoder), or that there is not; a pipeline for
            other micro-batches than a step has.
    """
    require_whole_step(recipe.parallel.pp, recipe.accumulation)
    objective = recipe.objective
    kind = str(objective.get("kind", "language_model"))
    names = {"language_model": "sft" if isinstance(recipe.model, str) else "pretrain"}
    if kind not in names and kind not in JOBS:
        known = [*names, *JOBS[2:]]
        raise UserError(f"no plan for objective {kind!r}", where=where, mend=nearest(kind, known))
    fields: dict[str, Any] = {
        "job": names.get(kind, kind),
        "adapter": recipe.adapter,
        "quantization": recipe.quantization,
        "dtype": recipe.precision,
        "optimizer": recipe.optimizer,
        "sequence": recipe.max_length,
        "micro_batch": recipe.micro_batch,
        "accumulation": recipe.accumulation,
        "checkpointing": recipe.checkpointing,
        "compile": recipe.compile,
        "neftune": recipe.neftune,
        **_of_objective(objective),
    }
    job: JobSpec = validate(JobSpec, fields, where)
    return job


def keys_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a job (`changes.Change.settings`) as a recipe calls them; keys below others are dotted."""
    return {_KEYS.get(name, name): value for name, value in settings.items()}


def _of_objective(objective: Mapping[str, Any]) -> dict[str, Any]:
    """What of it changes the memory."""
    fields: dict[str, Any] = {key: objective[key] for key in ("chunk", "beta", "value", "at_once") if key in objective}
    if objective.get("kind") != "grpo":
        fields.pop("beta", None)
    if isinstance(objective.get("ptx"), Mapping):
        fields["ptx"] = objective["ptx"].get("micro_batch", 1)
    if "num_mini_batches" in objective:
        fields["mini_batches"] = objective["num_mini_batches"]
    if "rewards" in objective and isinstance(objective["rewards"], list):
        fields["reward_models"] = sum(isinstance(one, dict) and "model" in one for one in objective["rewards"])
    if objective.get("reference") in _REFERENCES:
        fields["reference"] = _REFERENCES[objective["reference"]]
    return fields
