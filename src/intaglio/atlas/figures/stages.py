"""The three stages of InstructGPT as one picture, read from a recipe of stages: what each learns from, and which model
goes where.

Every box and every arrow is what the file says, so that a changed recipe changes the picture. A stage stands under
those that it learns from; what only measures it is a dashed line.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.svg import Canvas, wrapped
from intaglio.errors import UserError
from intaglio.lineage.units import short_count
from intaglio.specs import validate_model
from intaglio.training.recipe import Recipe, TokenizerSpec
from intaglio.training.stages.plan import Stages, load_stages

__all__ = ["ThreeStages"]

_CHECKOUT: Final = Path(__file__).parents[4]
_WIDTH: Final = 472.0
_BOX: Final = 176.0
_DOWN: Final = 30.0  # between rows
_SMALL: Final = 11.0
_LINE: Final = 15.0
_TITLES: Final = {
    "language_model": Words("next token", "下一个词元"),
    "reward": Words("reward model", "奖励模型"),
    "ppo": Words("PPO", "PPO"),
    "dpo": Words("DPO", "DPO"),
}
_ROLES: Final = {
    "model": Words("begins at it", "从它开始"),
    "rewards": Words("is its reward", "给它打分"),
    "value_from": Words("begins its critic", "初始化评论者"),
}


@dataclass(frozen=True)
class ThreeStages(Figure):
    """See above.

    Attributes:
        recipe: of stages, from where one is or from the root of this repository.
    """

    name: ClassVar[str] = "three-stages"
    title: ClassVar[Words] = Words("Three stages, and DPO beside", "三个阶段，以及旁边的 DPO")
    claim: ClassVar[Words] = Words(
        "ChatGPT is a language model, then demonstrations (SFT), then preferences: a reward model and PPO. DPO takes "
        "the same pairs without either.",
        "ChatGPT 先是语言模型，再学示范（SFT），再学偏好：奖励模型加 PPO。DPO 用同样的成对数据，两者都不要。",
    )
    recipe: str = "recipes/three-stages.yaml"

    def inputs(self) -> str:
        file = self._file()
        return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""

    def data(self) -> Any:
        """See `Figure.data`.

        Raises:
            UserError: no such file, or see `load_stages`.
        """
        if not self._file().is_file():
            raise UserError("no such recipe", where=self.recipe, mend="call it where this repository was cloned to")
        stages = load_stages(self._file(), [])
        recipes = stages.recipes(Path())
        return {
            "stages": {name: _told(recipe, stages.stages[name].fields) for name, recipe in recipes.items()},
            "report": _asked(stages),
        }

    def _file(self) -> Path:
        here = Path(self.recipe)
        return here if here.is_file() else _CHECKOUT / self.recipe

    def caption(self, data: Any) -> Words:
        stages, report = data["stages"], data["report"]
        steps = sum(stage["steps"] or 0 for stage in stages.values())
        same = _with_data_of(stages, "dpo")
        asked = (
            Words(
                f" At the end {report['rows']} prompts of {report['prompts']} are put to every stage that writes.",
                f"最后向每个会写作的阶段提出 {report['prompts']} 的 {report['rows']} 个提示。",
            )
            if report
            else Words("", "")
        )
        return Words(
            f"`intaglio train {self.recipe}` as it stands: {len(stages)} runs, {steps:,} steps. Solid arrows are "
            "weights that a stage begins at, or a model that it is trained with; a dashed line measures it and teaches "
            f"it nothing. DPO reads {same.en}, and has no reward model and no critic.{asked.en}",
            f"`intaglio train {self.recipe}` 的原样：{len(stages)} 个运行，共 {steps:,} 步。实线箭头是该阶段开始时的权"
            f"重，或训练它所用的模型；虚线只测量，不教它什么。DPO 读{same.zh}，没有奖励模型，也没有评论者。{asked.zh}",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        return [_picture(data, say)]


def _told(recipe: Recipe, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Of one stage, what its box says, and the stages that it takes from."""
    objective = recipe.objective
    weights = {name: getattr(objective, name, None) for name in ("beta", "center", "kl_coef")}
    own, judged = fields.get("objective") or {}, fields.get("compare") or {}
    taken = {"model": _named(fields.get("model")), "rewards": _named(own.get("rewards"))}
    return {
        "objective": objective.kind,
        "parameters": _parameters(recipe),
        "weights": {name: value for name, value in weights.items() if value},
        "data": recipe.data if isinstance(recipe.data, str) else ", ".join(one.path for one in recipe.data),
        "rows": recipe.micro_batch * recipe.accumulation,
        "steps": recipe.steps,
        "from": {
            role: names for role, names in {**taken, "value_from": _named(own.get("value_from"))}.items() if names
        },
        "measured_by": _named(judged.get("rewards")),
    }


def _parameters(recipe: Recipe) -> int | None:
    """Of a model that begins at random weights, with as many tokens as its tokenizer may have."""
    if not isinstance(recipe.architecture, dict) or not isinstance(recipe.tokenizer, TokenizerSpec):
        return None
    given = {"vocab_size": recipe.tokenizer.vocab_size, **recipe.architecture}
    return validate_model(given, "architecture").num_parameters() if given["vocab_size"] else None


def _named(value: Any) -> list[str]:
    """The names in every `{stage: NAME}` of a value."""
    if isinstance(value, Mapping):
        return [str(value["stage"])] if set(value) == {"stage"} else [n for v in value.values() for n in _named(v)]
    return [name for one in value for name in _named(one)] if isinstance(value, list | tuple) else []


def _asked(stages: Stages) -> dict[str, Any] | None:
    if stages.report is None:
        return None
    report = stages.report
    scores = [str(score.function or score.model or score.pattern).rpartition(":")[2] for score in report.scores]
    return {"prompts": report.prompts, "rows": report.rows, "judges": [*filter(None, [report.reward]), *scores]}


def _with_data_of(stages: Mapping[str, Any], name: str) -> Words:
    """Which stages read the same data."""
    mine = stages.get(name, {}).get("data")
    others = [one for one, stage in stages.items() if one != name and stage["data"] == mine]
    if not mine or not others:
        return Words("pairs of its own", "自己的成对数据")
    return Words(f"the pairs of {', '.join(others)}", f"与 {'、'.join(others)} 相同的成对数据")


def _rows(stages: Mapping[str, Any]) -> list[list[str]]:
    """Names by how many stages stand above."""
    depth: dict[str, int] = {}
    for name, stage in stages.items():
        depth[name] = 1 + max((depth[other] for names in stage["from"].values() for other in names), default=-1)
    return [[name for name, at in depth.items() if at == row] for row in range(max(depth.values()) + 1)]


def _picture(data: Any, say: Say) -> Canvas:
    stages = data["stages"]
    canvas = Canvas(_WIDTH, 0)
    places: dict[str, tuple[float, float, float]] = {}  # left, top, bottom
    y = 12.0
    for row in _rows(stages):
        lefts = _lefts(row, stages, places)
        bottoms = [_box(canvas, name, stages[name], left, y, say) for name, left in zip(row, lefts, strict=True)]
        for name, left, bottom in zip(row, lefts, bottoms, strict=True):
            places[name] = (left, y, bottom)
        y = max(bottoms) + _DOWN
    for name, stage in stages.items():
        _arrows(canvas, name, stage, places, say)
    if data["report"]:
        y = _report(canvas, data["report"], y - _DOWN + 18, say)
    canvas.height = y
    return canvas


def _lefts(row: Sequence[str], stages: Mapping[str, Any], places: Mapping[str, Any]) -> list[float]:
    """Side by side; one alone in the middle, or under what it learns from beside the model that it begins at."""
    if len(row) > 1:
        gap = (_WIDTH - 48 - len(row) * _BOX) / (len(row) - 1)
        return [36 + place * (_BOX + gap) for place in range(len(row))]
    helpers = [name for role, names in stages[row[0]]["from"].items() if role != "model" for name in names]
    return [places[helpers[0]][0] if helpers else (_WIDTH - _BOX) / 2 + 12]


def _box(canvas: Canvas, name: str, stage: Any, x: float, y: float, say: Say) -> float:
    """Returns its bottom."""
    lines = [line for words in _lines(stage, say) for line in wrapped(words, _BOX - 16, _SMALL)]
    height = 24 + _LINE * len(lines) + 4
    canvas.rect(x, y, _BOX, height, "box", round_by=5)
    title = _TITLES.get(stage["objective"], Words(stage["objective"], stage["objective"]))
    named = say(*title) if name == say(*title).lower() else f"{name}: {say(*title)}"
    canvas.text(x + 8, y + 17, named, "strong")
    for place, line in enumerate(lines):
        canvas.text(x + 8, y + 33 + place * _LINE, line, "faint", size=_SMALL)
    return y + height


def _lines(stage: Any, say: Say) -> Iterator[str]:
    if stage["parameters"]:
        yield say(f"{short_count(stage['parameters'])} parameters", f"{short_count(stage['parameters'])} 参数")
    yield str(stage["data"])
    if stage["steps"]:
        yield say(f"{stage['steps']} steps of {stage['rows']}", f"{stage['steps']} 步，每步 {stage['rows']}")
    if stage["weights"]:
        yield ", ".join(f"{name} {value:g}" for name, value in stage["weights"].items())


def _arrows(canvas: Canvas, name: str, stage: Any, places: Mapping[str, Any], say: Say) -> None:
    """From each stage that it takes from, with what it takes; dashed from what measures it."""
    left, top, bottom = places[name]
    helpers: dict[str, list[str]] = {}
    for role, names in stage["from"].items():
        for other in names:
            helpers.setdefault(other, []).append(say(*_ROLES[role]))
    for other, roles in helpers.items():
        _arrow(canvas, places[other], places[name], say(", ", "，").join(roles))
    for other in stage["measured_by"]:
        at, (far, _, _) = (top + bottom) / 2, places[other]
        start, end = (far + _BOX, left) if far < left else (far, left + _BOX)
        canvas.path(f"M{start:.1f} {at:.1f}H{end:.1f}", "arrow", 'stroke-dasharray="3 3"')
        canvas.text((start + end) / 2, at - 5, say("measures", "只测量"), "faint", size=_SMALL, anchor="middle")


def _arrow(canvas: Canvas, source: tuple[float, float, float], target: tuple[float, float, float], words: str) -> None:
    """Straight down, or, where something lies between, along the left edge."""
    (x0, _, foot), (x1, top, _) = source, target
    if top - foot > _DOWN + 60:  # another row lies between
        out, into = foot - 14, top + 14
        canvas.arrow([(x0, out), (16, out), (16, into), (x1, into)])
        canvas.text(12, (out + into) / 2, words, "faint", size=_SMALL, anchor="middle", turned=True)
        return
    start, end = x0 + _BOX / 2, x1 + _BOX / 2
    middle = (foot + top) / 2
    canvas.arrow(
        [(start, foot), (start, middle), (end, middle), (end, top)] if start != end else [(end, foot), (end, top)]
    )
    canvas.text(end + 6, top - 5, words, "faint", size=_SMALL)


def _report(canvas: Canvas, report: Any, y: float, say: Say) -> float:
    """What all that write are asked; returns the picture's height."""
    words = say(
        f"report: {report['rows']} prompts of {report['prompts']}, judged by {', '.join(report['judges'])}",
        f"report：{report['prompts']} 的 {report['rows']} 个提示，评判：{'、'.join(report['judges'])}",
    )
    lines = wrapped(words, _WIDTH - 64, _SMALL)
    height = 12 + _LINE * len(lines)
    canvas.rect(36, y, _WIDTH - 48, height, "box", round_by=5)
    for place, line in enumerate(lines):
        canvas.text(44, y + 17 + place * _LINE, line, "faint", size=_SMALL)
    return y + height + 10
