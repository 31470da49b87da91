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
from intaglio.atlas.parts import Part, Results
from intaglio.atlas.runs import best_rate, run_to_end
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
        if len(set(self._names)) < max(2, len(self.recipes)):
            raise UserError("give two recipes or more, each with a name of its own", where="compare")
        for path in self.recipes:
            recipe = load_recipe(Path(path), list(self.changes))
            if recipe.answers is None or recipe.steps is None:
                raise UserError("a recipe to be compared has `steps` and takes `answers`", where=path)

    @property
    def _names(self) -> list[str]:
        return [Path(path).stem for path in self.recipes]

    def plain(self) -> dict[str, Any]:
        """See `Claims`."""
        recipes = {name: self._recipe(path).model_dump(mode="json") for name, path in self._pairs()}
        return {**asdict(self), "recipes": recipes, "rates": list(self.rates), "changes": list(self.changes)}

    def parts(self) -> dict[str, Part]:
        """See `Claims`."""
        parts: dict[str, Part] = {}
        if self.minutes is not None:
            parts |= {f"{name}, pace": partial(self._pace, name, path) for name, path in self._pairs()}
        for rate in self.rates if len(self.rates) > 1 else ():
            parts |= {f"{name}, rate {rate:g}": partial(self._try, name, path, rate) for name, path in self._pairs()}
        for seed in range(1, self.seeds + 1):
            parts |= {f"{name}, seed {seed}": partial(self._run, name, path, seed) for name, path in self._pairs()}
        return parts

    def finding(self, results: Results) -> Finding:
        """See `Claims`."""
        runs = {name: [results[f"{name}, seed {s}"] for s in range(1, self.seeds + 1)] for name in self._names}
        scores = [score for score in ("bleu", "chrf") if score in runs[self._names[0]][0]["answers"]]
        return Finding(
            title=f"held-out answers of recipes; {self._budget()}, {self.seeds} seeds",
            columns=("recipe", "learning rate", "steps", "minutes", "parameters", "right, %", *scores),
            rows=[self._row(name, path, runs[name], scores, results) for name, path in self._pairs()],
            verdicts=[verdict for name in self._names[1:] for verdict in self._verdicts(name, runs, scores)],
            panels={"training loss, nats": {name: runs[name][0]["curve"] for name in self._names}},
            across="tokens read",
        )

    def _row(
        self, name: str, path: str, runs: Sequence[dict[str, Any]], scores: Sequence[str], results: Results
    ) -> tuple[str, ...]:
        right = 100 * np.array([run["correct"] for run in runs])  # (S, N)
        return (
            name,
            f"{self._rate(name, path, results):g}",
            str(runs[0]["steps"]),
            f"{np.mean([run['seconds'] for run in runs]) / 60:.1f}",
            f"{runs[0]['parameters']:,}",
            shown_interval(right, 1),
            *(_mean_span([run["answers"][score] for run in runs]) for score in scores),
        )

    def _verdicts(self, name: str, runs: dict[str, list[dict[str, Any]]], scores: Sequence[str]) -> list[Verdict]:
        first = self._names[0]
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

    def _pairs(self) -> list[tuple[str, str]]:
        return list(zip(self._names, self.recipes, strict=True))

    def _rate(self, name: str, path: str, results: Results) -> float:
        return best_rate(results, name, self.rates) if self.rates else self._recipe(path).optimizer.learning_rate

    def _steps(self, name: str, path: str, results: Results, share: float = 1.0) -> int:
        whole = self._recipe(path).steps if self.minutes is None else 60 * self.minutes / results[f"{name}, pace"]
        assert whole is not None
        return max(1, round(share * whole))

    def _recipe(self, path: str, *changes: str) -> Recipe:
        return load_recipe(Path(path), [*self.changes, *changes])

    def _pace(self, name: str, path: str, folder: Path, results: Results) -> float:
        """Seconds a step."""
        changes = (f"steps={_PACE_STEPS}", f"evaluate_every={_PACE_STEPS}", "save_every=0", "answers=null")
        told = run_to_end(self._recipe(path, *changes), folder / f"{name}-pace")
        return float(told["seconds_per_step"])

    def _try(self, name: str, path: str, rate: float, folder: Path, results: Results) -> dict[str, Any]:
        steps = self._steps(name, path, results, self.share)
        changes = (f"optimizer.learning_rate={rate}", f"steps={steps}", f"evaluate_every={steps}", "answers=null")
        return run_to_end(self._recipe(path, *changes, "seed=0"), folder / f"{name}-rate-{rate:g}")

    def _run(self, name: str, path: str, seed: int, folder: Path, results: Results) -> dict[str, Any]:
        changes = (
            f"optimizer.learning_rate={self._rate(name, path, results)}",
            f"steps={self._steps(name, path, results)}",
            f"seed={seed}",
        )
        recipe, run = self._recipe(path, *changes), folder / f"{name}-seed-{seed}"
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
