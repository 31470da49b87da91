"""Training runs side by side: what their logs say of each step, as curves and as a table."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

__all__ = ["Curves", "ends", "learning_curves"]

Log = Sequence[Mapping[str, Any]]
"""The lines of a run's log."""

Curves = dict[str, dict[str, list[tuple[float, float]]]]
"""What is measured -> run -> its (step, value) points."""

LOSS: Final = "loss"
HELD_OUT: Final = "eval_"


def learning_curves(logs: Mapping[str, Log]) -> Curves:
    """The training loss and everything that was measured on held-out rows, of each run that has it.

    Args:
        logs: name of a run -> its log.
    """
    curves: Curves = {}
    for run, lines in logs.items():
        for key, step, value in _points(lines):
            curves.setdefault(key, {}).setdefault(run, []).append((step, value))
    return dict(sorted(curves.items(), key=lambda pair: (pair[0] != LOSS, pair[0] != f"{HELD_OUT}{LOSS}")))


def ends(curves: Curves) -> dict[str, dict[str, dict[str, float]]]:
    """Of each curve and run: `last`, and `lowest` and `highest` with the steps they were reached at."""
    return {key: {run: _end(points) for run, points in each.items()} for key, each in curves.items()}


def _points(lines: Log) -> Iterator[tuple[str, float, float]]:
    for line in lines:
        for key, value in line.items():
            measured = key == LOSS or key.startswith(HELD_OUT)
            if measured and isinstance(value, int | float) and math.isfinite(value) and "step" in line:
                yield key, float(line["step"]), float(value)


def _end(points: Sequence[tuple[float, float]]) -> dict[str, float]:
    low, high = (choose(points, key=lambda point: point[1]) for choose in (min, max))
    lowest = {"lowest": low[1], "lowest_step": low[0], "highest": high[1], "highest_step": high[0]}
    return {"steps": points[-1][0], "last": points[-1][1], **lowest}
