"""In-context learning as a curve: a score against the number of worked examples in front of a question.

Brown et al. 2020 (arXiv 2005.14165, section 2): the larger a model, the more it makes of examples. A run with several
numbers of shots has a task for each, named `task@number`.
"""

from collections.abc import Mapping
from pathlib import Path

from intaglio.evaluation.results import Results, Summary
from intaglio.plots import draw_bands

__all__ = ["draw_shots", "shot_curves"]

Curves = dict[str, dict[str, list[tuple[int, Summary]]]]
"""`task, metric` -> run -> its points, fewest shots first."""


def shot_curves(runs: Mapping[str, Results]) -> Curves:
    """The curves of tasks that were put with several numbers of shots; the first metric of each."""
    curves: Curves = {}
    for run, results in runs.items():
        for name, result in results.tasks.items():
            task, mark, number = name.rpartition("@")
            if mark and number.isdecimal() and result.metrics:
                metric = next(iter(result.metrics))
                curves.setdefault(f"{task}, {metric}", {}).setdefault(run, []).append(
                    (int(number), result.metrics[metric])
                )
    found = {title: {run: sorted(points, key=_shots) for run, points in each.items()} for title, each in curves.items()}
    return {title: each for title, each in found.items() if max(map(len, each.values())) > 1}


def draw_shots(path: Path, curves: Curves) -> None:
    """A panel for each task, a curve for each run, an interval at each point.

    Args:
        path: the PNG file.
        curves: not empty.

    Raises:
        UserError: matplotlib is not installed.
    """
    panels = {
        title: {
            run: [(float(number), (one.mean, one.low, one.high)) for number, one in points]
            for run, points in each.items()
        }
        for title, each in curves.items()
    }
    draw_bands(path, panels, "shots")


def _shots(point: tuple[int, Summary]) -> int:
    return point[0]
