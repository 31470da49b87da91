"""Runs side by side: `intaglio eval --compare RUN...`, of evaluations or of trainings."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from intaglio.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from intaglio.evaluation.comparison import Difference
    from intaglio.evaluation.results import Results

__all__ = ["compared"]

RESULTS: Final = "results.json"
LOG: Final = "log.jsonl"
SHOWN: Final = 8
"""Items that changed sides, told by name."""


def compared(runs: Sequence[str], out: Path | None, as_json: bool) -> None:
    """Prints what the runs are worth beside each other, and draws their curves.

    Args:
        runs: folders, all of evaluations or all of trainings; the first is what the others are held against.
        out: where pictures go; default: a folder of its own in runs/.
        as_json: JSON instead of tables.

    Raises:
        UserError: no such run, runs of both kinds, or evaluations of different items.
    """
    folders = _folders(runs)
    kinds = {_kind(folder) for folder in folders.values()}
    if len(kinds) > 1:
        raise UserError("evaluations and trainings have nothing to compare", where="--compare", mend="give one kind")
    place = out or Path("runs", f"compare-{hashlib.sha256(repr([*folders.values()]).encode()).hexdigest()[:8]}")
    (_evaluations if kinds == {RESULTS} else _trainings)(folders, place, as_json)


def _folders(runs: Sequence[str]) -> dict[str, Path]:
    """By name; by path where two have one name."""
    if not runs:
        raise UserError("no run is named", where="--compare", mend="intaglio eval --compare RUN RUN")
    paths = [Path(run) for run in runs]
    paths = [path.parent if path.name in (RESULTS, LOG) else path for path in paths]
    if len({path.resolve() for path in paths}) < len(paths):
        raise UserError("a run is named twice", where="--compare")
    names = [path.resolve().name for path in paths]
    return {name if names.count(name) == 1 else str(path): path for name, path in zip(names, paths, strict=True)}


def _kind(folder: Path) -> str:
    for name in (RESULTS, LOG):
        if (folder / name).is_file():
            return name
    what = f"holds neither {RESULTS} of an evaluation nor {LOG} of a training"
    raise UserError(what, where=str(folder), mend="name the folder of a run")


def _evaluations(folders: dict[str, Path], place: Path, as_json: bool) -> None:
    from intaglio.evaluation.comparison import compare
    from intaglio.evaluation.results import read_results
    from intaglio.evaluation.shots import shot_curves

    results = {name: read_results(folder) for name, folder in folders.items()}
    found = compare(results) if len(results) > 1 else []
    curves = shot_curves(results)
    if not (found or curves):
        raise UserError("one run has nothing to be compared with", where="--compare", mend="name another")
    picture = place / "shots.png" if curves else None
    if picture:
        from intaglio.evaluation.shots import draw_shots

        picture.parent.mkdir(parents=True, exist_ok=True)
        draw_shots(picture, curves)
    if as_json:
        differences = [one.as_json() for one in found]
        print(json.dumps({"runs": _models(results, folders), "differences": differences, "picture": _text(picture)}))
        return
    _show_differences(found, next(iter(results)))
    if picture:
        print(f"shots: {picture}")


def _models(results: "dict[str, Results]", folders: dict[str, Path]) -> dict[str, Any]:
    return {name: {"path": str(folders[name]), "model": dict(one.model)} for name, one in results.items()}


def _text(picture: Path | None) -> str | None:
    return None if picture is None else str(picture)


def _show_differences(found: "Sequence[Difference]", base: str) -> None:
    from rich.console import Console

    if not found:
        return
    console = Console()
    console.print(_table(found, base))
    for one in found:
        for ids, words in ((one.gained, "right here alone"), (one.lost, f"right in {base} alone")):
            if ids and not one.category:
                console.print(
                    f"{one.task} {one.metric}, {one.run}: {words}: {_listed(ids)}", markup=False, highlight=False
                )
    console.print("* the 95 % interval leaves 0 out. p: McNemar, exact. Each line stands for itself.", style="dim")


def _table(found: "Sequence[Difference]", base: str) -> "Table":
    from rich.table import Table

    table = Table("task", "category", "metric", "items", base, "run", "score", "difference (95 %)", "p")
    for one in found:
        mean, low, high = one.difference
        gap = f"{mean:+.3f} ({low:+.3f} to {high:+.3f}){' *' if one.real else ''}"
        scores = (f"{one.base_score.mean:.3f}", one.run, f"{one.score.mean:.3f}")
        p = "-" if one.p is None else f"{one.p:.2g}"
        table.add_row(one.task, one.category, one.metric, str(one.items), *scores, gap, p)
    return table


def _listed(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
    return f"{len(ids)} ({', '.join(ids[:SHOWN])}{more})"


def _trainings(folders: dict[str, Path], place: Path, as_json: bool) -> None:
    from intaglio.evaluation.learning_curves import ends, learning_curves
    from intaglio.plots import draw_curves
    from intaglio.training.log import read_log

    curves = learning_curves({name: read_log(folder / LOG) for name, folder in folders.items()})
    if not curves:
        raise UserError("no step is in the logs yet", where="--compare")
    place.mkdir(parents=True, exist_ok=True)
    picture = place / "curves.png"
    draw_curves(picture, curves, "step")
    told = ends(curves)
    if as_json:
        paths = {name: str(folder) for name, folder in folders.items()}
        print(json.dumps({"runs": paths, "curves": told, "picture": str(picture)}))
        return
    _show_ends(told)
    print(f"curves: {picture}")


def _show_ends(told: dict[str, dict[str, dict[str, float]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("measured", "run", "steps", "last", "lowest (step)", "highest (step)")
    for key, runs in told.items():
        for place, (run, one) in enumerate(runs.items()):
            ends = [f"{one[end]:.4g} ({one[f'{end}_step']:.0f})" for end in ("lowest", "highest")]
            table.add_row("" if place else key, run, f"{one['steps']:.0f}", f"{one['last']:.4g}", *ends)
    Console().print(table)
