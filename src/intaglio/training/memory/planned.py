"""What a step of a run takes of memory, as the planner has it, and what of its recipe would make that less.

`--dry-run` shows it before anything runs, and a run that finds too little memory says it at its end (`shortage`).
"""

import json
from copy import deepcopy
from typing import Any, Final

from intaglio.errors import UserError
from intaglio.lineage.units import short_bytes
from intaglio.planning.changes import Change, changes
from intaglio.planning.job_plan import JobPlan, plan_job
from intaglio.planning.recipes import job_of, keys_of, recipe_of
from intaglio.specs import DecoderSpec, validate
from intaglio.training.adapting import adapter_of, ranks_beside
from intaglio.training.changes import apply_change
from intaglio.training.objectives.specs import ClassifierSpec
from intaglio.training.recipe import Recipe

__all__ = ["as_changes", "helpful", "largest", "memory_plan", "on_cpu", "what_helps"]

_SHOWN: Final = 3
_LITTLE: Final = 0.01  # of the peak: what gains less is not worth a change


def on_cpu(recipe: Recipe) -> bool:
    """Whether what a recipe trains lies in the host's own memory."""
    return not recipe.device.startswith("cuda")


def memory_plan(recipe: Recipe, spec: DecoderSpec) -> JobPlan:
    """The memory of a full micro-batch, on each kind of rank.

    Args:
        recipe: of the run.
        spec: of its model.

    Raises:
        UserError: see `plan_job`.
    """
    lora = adapter_of(recipe)
    plain = recipe.plain() | ({} if lora is None else {"adapter": lora.plain()})
    if isinstance(recipe.objective, ClassifierSpec):  # as language modelling: its head takes nothing to speak of
        plain["objective"] = {"chunk": recipe.objective.chunk}
    read = recipe_of(plain, "recipe")
    return plan_job(spec, job_of(read, "recipe"), read.parallel, cpu=on_cpu(recipe), ranks=ranks_beside(spec, lora))


def largest(plan: JobPlan) -> tuple[str, int]:
    """Which component takes most at the peak, and its bytes; kinds of activations count together."""
    sums: dict[str, int] = {}
    for name, size in plan.worst.peak.parts.items():
        kind = name.partition(":")[0]
        sums[kind] = sums.get(kind, 0) + size
    return max(sums.items(), key=lambda part: part[1])


def helpful(recipe: Recipe, plan: JobPlan) -> list[Change]:
    """The changes that this recipe may have, the best first; what gains next to nothing is left out."""
    found = changes(plan, cpu=on_cpu(recipe))
    return [one for one in found if one.gain >= _LITTLE * plan.peak_bytes and _possible(recipe, one)]


def what_helps(found: list[Change]) -> str:
    """The first few changes, as they are written on the command line, each with its gain."""
    return ", ".join(
        f"{as_changes(one)} gains {short_bytes(one.gain)}{'' if one.alike else ' (another training)'}"
        for one in found[:_SHOWN]
    )


def as_changes(change: Change) -> str:
    """`key=value` for each key of the recipe that changes."""
    return " ".join(_told(change))


def _told(change: Change) -> list[str]:
    return [f"{key}={_written(value)}" for key, value in keys_of(change.settings).items()]


def _possible(recipe: Recipe, change: Change) -> bool:
    data = deepcopy(recipe.plain())
    try:
        for one in _told(change):
            apply_change(data, one)
        validate(Recipe, data)
    except UserError:
        return False
    return True


def _written(value: Any) -> str:
    """In YAML, without blanks."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
