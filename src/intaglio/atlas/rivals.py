"""Recipes against each other: what each comes to after an equal budget, at the learning rate that suits it best.

The budget is what the recipes say, or so many minutes of computing: then the pace of each is measured first, and each
takes as many steps as fit. Learning rates are tried with a share of the budget, on a seed that is not measured, and the
one of the lowest held-out loss is taken. All answer the same held-out rows.

Legend: S seeds, N held-out rows.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from intaglio.atlas.findings import Finding, Verdict, claim, shown_interval
from intaglio.atlas.parts import Results, Stage
from intaglio.atlas.runs import best_rate, contest, run_to_end
from intaglio.errors import UserError
from intaglio.evaluation.translation import translation_gain
from intaglio.files import read_json
from intaglio.lineage.resolve import resolve_spec
from intaglio.training.recipe import Recipe, load_recipe

__all__ = ["Rivals"]

_PACE_STEPS: Final = 40


@dataclass(frozen=True)
class Rivals:
    """See above.

    Attributes:
        recipes: their files; each takes held-out answers.
        rates: learning rates to choose from; none or one: nothing is tried (none: the recipes' own).
        share: of the budget, for each learning rate tried.
        minutes: of computing for each run; None: the recipes' own steps.
        changes: `key=value`, to all recipes.
        seeds: that are measured.
    """

    name: ClassVar[str] = "compare"
    recipes: tuple[str, ...]
    rates: tuple[float, ...] = ()
    share: float = 0.25
    minutes: float | None = None
    changes: tuple[str, ...] = ()
    seeds: int = 3

    def __post_init__(self) -> None:
        if len(self._paths) < max(2, len(self.recipes)):
            raise UserError("give two recipes or more, each with a name of its own", where="compare")
        for path in self.recipes:
            recipe = load_recipe(Path(path), list(self.changes))
            if recipe.answers is None or recipe.steps is None:
                raise UserError("a recipe to be compared has `steps` and takes `answers`", where=path)

    @property
    def _paths(self) -> dict[str, str]:
        """The recipes by name, in order."""
        return {Path(path).stem: path for path in self.recipes}

    def plain(self) -> dict[str, Any]:
        """See `Claims`."""
        recipes = {name: self._recipe(name).model_dump(mode="json") for name in self._paths}
        return {**asdict(self), "recipes": recipes, "rates": list(self.rates), "changes": list(self.changes)}

    def stages(self) -> list[Stage]:
        """See `Claims`."""
        timed = self._paths if self.minutes is not None else {}
        paces = {f"{name}, pace": partial(self._pace, name) for name in timed}
        return [paces, *contest(self._paths, self.rates, self.seeds, self._try, self._run)]

    def finding(self, results: Results) -> Finding:
        """See `Claims`."""
        runs = {name: [results[f"{name}, seed {s}"] for s in range(1, self.seeds + 1)] for name in self._paths}
        first, *others = runs
        scores = [score for score in ("bleu", "chrf") if score in runs[first][0]["answers"]]
        return Finding(
            title=f"held-out answers of recipes; {self._budget()}, {self.seeds} seeds",
            columns=("recipe", "learning rate", "steps", "minutes", "parameters", "right, %", *scores),
            rows=[self._row(name, runs[name], scores, results) for name in runs],
            verdicts=[verdict for name in others for verdict in self._verdicts(name, first, runs, scores)],
            panels={"training loss, nats": {name: runs[name][0]["curve"] for name in runs}},
            across="tokens read",
        )

    def _row(
        self, name: str, runs: Sequence[dict[str, Any]], scores: Sequence[str], results: Results
    ) -> tuple[str, ...]:
        right = 100 * np.array([run["correct"] for run in runs])  # (S, N)
        return (
            name,
            f"{self._rate(name, results):g}",
            str(runs[0]["steps"]),
            f"{np.mean([run['seconds'] for run in runs]) / 60:.1f}",
            f"{runs[0]['parameters']:,}",
            shown_interval(right, 1),
            *(_mean_span([run["answers"][score] for run in runs]) for score in scores),
        )

    def _verdicts(
        self, name: str, first: str, runs: dict[str, list[dict[str, Any]]], scores: Sequence[str]
    ) -> list[Verdict]:
        mine, others = ([run["correct"] for run in runs[who]] for who in (name, first))
        gained = 100 * (np.array(mine, dtype=float) - np.array(others, dtype=float))
        verdicts = [claim(f"{name} has more answers right than {first}", gained, "points")]
        if scores:
            wanted = runs[first][0]["wanted"]
            mine, others = ([run["texts"] for run in runs[who]] for who in (name, first))
            gains = translation_gain(mine, others, wanted, runs[first][0]["tokenize"])
            verdicts += [
                Verdict(f"{name} has a higher {score} than {first}", gains[score], "points") for score in scores
            ]
        return verdicts

    def _budget(self) -> str:
        return "the recipes' own steps" if self.minutes is None else f"{self.minutes:g} minutes of computing each"

    def _rate(self, name: str, results: Results) -> float:
        return best_rate(results, name, self.rates) if self.rates else self._recipe(name).optimizer.learning_rate

    def _steps(self, name: str, results: Results, share: float = 1.0) -> int:
        whole = self._recipe(name).steps if self.minutes is None else 60 * self.minutes / results[f"{name}, pace"]
        assert whole is not None
        return max(1, round(share * whole))

    def _recipe(self, name: str, *changes: str) -> Recipe:
        return load_recipe(Path(self._paths[name]), [*self.changes, *changes])

    def _pace(self, name: str, folder: Path, results: Results) -> float:
        """Seconds a step."""
        changes = (f"steps={_PACE_STEPS}", f"evaluate_every={_PACE_STEPS}", "save_every=0", "answers=null")
        told = run_to_end(self._recipe(name, *changes), folder / f"{name}-pace")
        return float(told["seconds_per_step"])

    def _try(self, name: str, rate: float, folder: Path, results: Results) -> dict[str, Any]:
        steps = self._steps(name, results, self.share)
        changes = (f"optimizer.learning_rate={rate}", f"steps={steps}", f"evaluate_every={steps}", "answers=null")
        return run_to_end(self._recipe(name, *changes, "seed=0"), folder / f"{name}-rate-{rate:g}")

    def _run(self, name: str, seed: int, folder: Path, results: Results) -> dict[str, Any]:
        changes = (
            f"optimizer.learning_rate={self._rate(name, results)}",
            f"steps={self._steps(name, results)}",
            f"seed={seed}",
        )
        recipe, run = self._recipe(name, *changes), folder / f"{name}-seed-{seed}"
        told = run_to_end(recipe, run)
        report = read_json(run / "report.json")
        assert recipe.answers is not None
        return {
            **told,
            "steps": recipe.steps,
            "parameters": resolve_spec(str(run / "model"))[1].num_parameters(),
            "answers": report["answers"]["tuned"],
            "correct": report["tuned"]["correct"],
            "texts": report["tuned"]["texts"],
            "wanted": report["wanted"],
            "tokenize": recipe.answers.bleu,
        }


def _mean_span(spans: list[dict[str, float]]) -> str:
    """Several seeds' scores, each with the interval over its rows: the means of all three numbers."""
    mean, low, high = (float(np.mean([span[key] for span in spans])) for key in ("mean", "low", "high"))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"
