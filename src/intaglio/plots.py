"""Curves as PNG files; matplotlib is imported when one is drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from intaglio.errors import UserError
from intaglio.files import whole_file

__all__ = ["draw_curves"]

Curve = Sequence[tuple[float, float]]


def draw_curves(path: Path, panels: Mapping[str, Mapping[str, Curve]], across: str) -> None:
    """One panel beside another, each with its curves.

    Args:
        path: the PNG file.
        panels: title -> name of a curve -> its (x, y) points.
        across: label of every x axis.

    Raises:
        UserError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("no plot: matplotlib is missing", mend="pip install 'intaglio[train]'") from error
    figure = Figure(figsize=(4.2 * len(panels), 3.2), layout="constrained", dpi=120)
    for axes, (title, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for name, points in curves.items():
            axes.plot([x for x, _ in points], [y for _, y in points], label=name, linewidth=1.4)
        axes.set(title=title, xlabel=across)
        axes.grid(alpha=0.25)
        if len(curves) > 1:
            axes.legend(frameon=False)
    with whole_file(path) as beside:
        figure.savefig(beside, format="png")
