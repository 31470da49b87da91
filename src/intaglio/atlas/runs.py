"""Small runs of recipes: begun, or gone on with, to their end; and the learning rate that suits each model best."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from intaglio.atlas.parts import Results, Stage
from intaglio.files import write_json_lines
from intaglio.specs import validate
from intaglio.training.log import read_log, step_seconds
from intaglio.training.recipe import Recipe
from intaglio.training.run import finish, unheard

__all__ = ["SCHEDULE", "best_rate", "contest", "run_recipe", "run_to_end", "write_rows"]

_POINTS = 12

SCHEDULE: Final[dict[str, Any]] = {"kind": "cosine", "warmup": 0.1, "final": 0.05}
"""Of the learning rate, where a recipe says no other."""


def run_recipe(fields: dict[str, Any], rate: float, seed: int, run: Path) -> dict[str, Any]:
    """Trains by a recipe (its fields, and what is the same in all of ours) into the folder `run`.

    Returns, raises:
        See `run_to_end`.
    """
    beside = {
        "precision": "float32",
        "optimizer": {"learning_rate": rate, "betas": [0.9, 0.98], "weight_decay": 0.01},
        "schedule": SCHEDULE,
        "evaluate_every": fields["steps"],
        "save_every": 0,
        "keep": 1,
        "seed": seed,
    }
    return run_to_end(validate(Recipe, {**beside, **fields}, "ladder"), run)


def run_to_end(recipe: Recipe, run: Path) -> dict[str, Any]:
    """Trains by `recipe` into the folder `run`, or goes on there.

    Returns:
        `loss`: held out, nats a target; `bits_per_byte`: held out, where the run tells it; `tokens_per_second` and
        `seconds_per_step`: of the middle step; `seconds`: of all steps; `curve`: (tokens seen, training loss), each
        over a stretch of steps.

    Raises:
        KeyboardInterrupt: a signal ended it; what it did is saved.
    """
    finish(recipe, run, say=unheard, quiet=True)
    return _told(read_log(run / "log.jsonl"))


def best_rate(results: Results, model: str, rates: Sequence[float]) -> float:
    """Of the rates tried with the part `MODEL, rate RATE`, the one of the lowest loss; of one rate, that."""
    return rates[0] if len(rates) == 1 else min(rates, key=lambda rate: results[f"{model}, rate {rate:g}"]["loss"])


def contest(
    names: Iterable[str], rates: Sequence[float], seeds: int, attempt: Callable[..., Any], run: Callable[..., Any]
) -> list[Stage]:
    """A comparison: each name is tried at each rate, if there are several, then measured with each seed.

    Args:
        names: of what is compared.
        rates: learning rates to choose from.
        seeds: that are measured, from 1 on.
        attempt: of a name and a rate, then as `parts.Part`.
        run: of a name and a seed, then as `parts.Part`.
    """
    names, tried = list(names), rates if len(rates) > 1 else ()
    tries = {f"{n}, rate {rate:g}": partial(attempt, n, rate) for n in names for rate in tried}
    return [tries, {f"{n}, seed {seed}": partial(run, n, seed) for seed in range(1, seeds + 1) for n in names}]


def write_rows(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    """Rows as JSON lines, unless they are there; returns the path."""
    if not path.exists():
        write_json_lines(path, rows)
    return path


def _told(lines: list[dict[str, Any]]) -> dict[str, Any]:
    steps = [line for line in lines if "loss" in line]
    seconds = step_seconds(lines)
    stretch = max(1, len(steps) // _POINTS)
    curve, seen = [], 0
    for start in range(0, len(steps) - stretch + 1, stretch):
        some = steps[start : start + stretch]
        seen += sum(line["tokens"] for line in some)
        curve.append([seen, sum(line["loss"] for line in some) / stretch])
    held_out = next(line for line in reversed(lines) if "eval_loss" in line)
    return {
        "loss": held_out["eval_loss"],
        "bits_per_byte": held_out.get("eval_bits_per_byte"),
        "tokens_per_second": median(line["tokens_per_second"] for line in steps),
        "seconds_per_step": median(seconds),
        "seconds": sum(seconds),
        "curve": curve,
    }
