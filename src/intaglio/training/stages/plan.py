"""A file of several recipes, each of which may start from what one before it makes.

    precision: float32          # shared: stands in every stage that does not say else
    stages:
      sft: {model: smollm2-135m, data: answers.jsonl, steps: 100}
      dpo: {model: {stage: sft}, objective: {kind: dpo}, data: pairs.jsonl, steps: 100}
    report: {prompts: asked.jsonl, baseline: sft}

`{stage: NAME}` stands for what that stage makes: its model, or its adapter where it trains one. A key of a stage takes
the place of the shared one whole. `stage.key=value` on the command line changes a stage, `key=value` what is shared.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import Field, field_validator

from intaglio.errors import UserError, nearest
from intaglio.files import whole_file
from intaglio.specs import Spec, load_yaml, validate
from intaglio.training.changes import apply_change
from intaglio.training.objectives.rl_specs import RewardSpec
from intaglio.training.recipe import Recipe

__all__ = ["ReportSpec", "Stage", "Stages", "has_stages", "load_stages"]

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]*")


class ReportSpec(Spec):
    """What all stages that write text are asked at the end, and how their answers are compared; see `stage_report`.

    Attributes:
        prompts: rows of prompts that no stage has learned from: a path, or the name of a data set.
        baseline: the stage that the others are compared with.
        reward: the stage whose model gives the reward.
        scores: what else answers are judged by, which the reward's stage must have no part in.
        rows: prompts, the first of them.
        max_tokens: of an answer.
        temperature: of the answers that are compared; 0 takes the likeliest token.
        samples: prompts whose answers are shown side by side.
        batch: answers that are made together.
        seed: of what is drawn: answers at a temperature above 0, and those that the divergence is measured on.
    """

    prompts: str
    baseline: str
    reward: str | None = None
    scores: tuple[RewardSpec, ...] = ()
    rows: int = Field(300, gt=1)
    max_tokens: int = Field(64, gt=0)
    temperature: float = Field(0.0, ge=0)
    samples: int = Field(5, ge=0)
    batch: int = Field(64, gt=0)
    seed: int = 0

    @field_validator("scores")
    @classmethod
    def _no_weights(cls, value: tuple[RewardSpec, ...]) -> tuple[RewardSpec, ...]:
        if any(score.weight != 1 for score in value):
            raise ValueError("a score is reported by itself, so that a weight means nothing")
        return value


@dataclass(frozen=True)
class Stage:
    """One recipe of the file.

    Attributes:
        name: of its folder too.
        fields: of its recipe, the shared ones among them; `{stage: NAME}` as it stands.
        where: file and name, for errors.
        starts_from: the stages it names.
    """

    name: str
    fields: Mapping[str, Any]
    where: str
    starts_from: tuple[str, ...] = field(default=())

    @property
    def trains_adapter(self) -> bool:
        """Whether it makes an adapter, and no model."""
        return self.fields.get("adapter") is not None

    @property
    def makes(self) -> str:
        """The folder of a run that holds what it makes."""
        return "adapter" if self.trains_adapter else "model"

    def recipe(self, made: Callable[[str], str]) -> Recipe:
        """The recipe, `made` telling where what a stage makes is.

        Raises:
            UserError: an unknown key, or a value that does not fit; names the stage and the key.
        """
        recipe: Recipe = validate(Recipe, _replaced(self.fields, made), self.where)
        return recipe


@dataclass(frozen=True)
class Stages:
    """All of the file, checked but for what the recipes' data and models are.

    Attributes:
        stages: by name, in order.
        report: what is measured at the end.
    """

    stages: Mapping[str, Stage]
    report: ReportSpec | None = None

    def recipes(self, out: Path) -> dict[str, Recipe]:
        """The recipe of every stage, for runs in `out`/NAME.

        Raises:
            UserError: see `Stage.recipe`.
        """
        base = out.resolve()
        return {
            name: stage.recipe(lambda other: str(base / other / self.stages[other].makes))
            for name, stage in self.stages.items()
        }

    def save(self, path: Path) -> None:
        """Writes what `load_stages` reads."""
        data: dict[str, Any] = {"stages": {name: dict(stage.fields) for name, stage in self.stages.items()}}
        if self.report:
            data["report"] = self.report.plain()
        with whole_file(path) as beside:
            beside.write_text(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), encoding="utf-8")


def has_stages(path: Path) -> bool:
    """Whether the file holds stages, and is not one recipe.

    Raises:
        UserError: no such file, or not YAML.
    """
    data = load_yaml(path)
    return isinstance(data, dict) and "stages" in data


def load_stages(path: Path, changes: list[str]) -> Stages:
    """The stages of a file, with changes from the command line.

    Raises:
        UserError: an unknown key, a value that does not fit, or a stage that starts from one that does not come before
            it; names the stage.
    """
    data = load_yaml(path)
    _require_stages_in(data, path)
    for change in changes:
        _change(data, change)
    _require_stages_in(data, path)
    named, report, shared = data.pop("stages"), data.pop("report", None), data
    _require_known(shared, named, str(path))
    stages: dict[str, Stage] = {}
    for name, fields in named.items():
        stages[name] = _stage(name, fields, shared, stages, str(path))
    spec = validate(ReportSpec, report, f"{path}: report") if report is not None else None
    if spec is not None:
        _require_stages(spec, stages, f"{path}: report")
    found = Stages(stages, spec)
    found.recipes(Path())  # what does not fit is said before anything runs
    return found


def _require_stages_in(data: Any, path: Path) -> None:
    if not isinstance(data, dict) or not isinstance(data.get("stages"), dict) or not data["stages"]:
        raise UserError("holds no stages", where=str(path), mend="stages: a name and a recipe for each")


def _change(data: dict[str, Any], change: str) -> None:
    """`ppo.steps=3` is of the stage ppo, `report.rows=9` of the report, everything else is shared."""
    first = change.partition("=")[0].partition(".")[0]
    own = first in data["stages"] and "." in change.partition("=")[0]
    apply_change(data["stages"] if own else data, change)


def _require_known(shared: Mapping[str, Any], named: Mapping[str, Any], where: str) -> None:
    unknown = next((key for key in shared if key not in Recipe.model_fields), None)
    if unknown is not None:
        known = [*Recipe.model_fields, *map(str, named), "report", "stages"]
        raise UserError(f"unknown key {unknown!r}", where=where, mend=nearest(str(unknown), known))


def _stage(name: Any, fields: Any, shared: Mapping[str, Any], before: Mapping[str, Stage], path: str) -> Stage:
    where = f"{path}: {name}"
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in {*Recipe.model_fields, "report", "stages"}:
        mend = "small letters, digits, - and _, and no key of a recipe"
        raise UserError(f"{name!r} is no name for a stage", where=path, mend=mend)
    if not isinstance(fields, dict):
        raise UserError("not a mapping of keys to values", where=where)
    whole = {**shared, **fields}
    used = tuple(dict.fromkeys(_names_in(whole)))
    for other in used:
        if other not in before:
            raise UserError(f"no stage {other!r} comes before this one", where=where, mend=nearest(other, before))
    if (base := _stage_of(whole.get("model"))) and before[base].trains_adapter:
        mend = f"name the model below it as model, and say adapter: {{from: {{stage: {base}}}}}"
        raise UserError(f"model: the stage {base} makes an adapter, which is no model", where=where, mend=mend)
    return Stage(name, whole, where, used)


def _require_stages(spec: ReportSpec, stages: Mapping[str, Stage], where: str) -> None:
    for key, name in (("baseline", spec.baseline), ("reward", spec.reward)):
        if name is not None and name not in stages:
            raise UserError(f"{key}: there is no stage {name!r}", where=where, mend=nearest(name, stages))


def _stage_of(value: Any) -> str | None:
    """The name in `{stage: NAME}`; None of anything else."""
    if isinstance(value, dict) and set(value) == {"stage"} and isinstance(value["stage"], str):
        return str(value["stage"])
    return None


def _names_in(value: Any) -> list[str]:
    if name := _stage_of(value):
        return [name]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [name for one in inner for name in _names_in(one)]


def _replaced(value: Any, made: Callable[[str], str]) -> Any:
    """The value with every `{stage: NAME}` replaced by the path it stands for."""
    if name := _stage_of(value):
        return made(name)
    if isinstance(value, Mapping):
        return {key: _replaced(one, made) for key, one in value.items()}
    return [_replaced(one, made) for one in value] if isinstance(value, list | tuple) else value
