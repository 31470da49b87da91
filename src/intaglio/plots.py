"""Pictures as PNG files; matplotlib is imported when one is drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from intaglio.errors import UserError
from intaglio.files import whole_file

__all__ = ["Spot", "draw_bands", "draw_curves", "draw_heat_map", "draw_spots", "draw_stacks"]

Curve = Sequence[tuple[float, float]]

Spot = tuple[float, tuple[float, float, float]]
"""x, and y as a mean with the ends of its interval."""


def draw_curves(path: Path, panels: Mapping[str, Mapping[str, Curve]], across: str) -> None:
    """One panel beside another, each with its curves; a name has one colour, and one legend where panels share it.

    Args:
        path: the PNG file.
        panels: title -> name of a curve -> its (x, y) points.
        across: label of every x axis.

    Raises:
        UserError: matplotlib is not installed.
    """
    names = max(map(len, panels.values()), default=0)
    size = (4.2 * len(panels), 3.2 + 0.1 * names)  # the names stand below, two in a row
    figure = _figure_class()(figsize=size, layout="constrained", dpi=120)
    colours = {name: f"C{place}" for place, name in enumerate(dict.fromkeys(n for one in panels.values() for n in one))}
    shared = len(panels) > 1 and sum(map(len, panels.values())) > len(colours)
    for axes, (title, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for name, points in curves.items():
            spot = "o" if len(set(map(tuple, points))) == 1 else ""  # a curve of one place would not be seen
            line = {"color": colours[name], "linewidth": 1.4, "marker": spot, "markersize": 4}
            axes.plot([x for x, _ in points], [y for _, y in points], label=name, **line)
        axes.set(title=title, xlabel=across)
        axes.grid(alpha=0.25)
        if len(curves) > 1 and not shared:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, fontsize="small", frameon=False)
    if shared:
        lines = {line.get_label(): line for axes in figure.axes for line in axes.get_lines()}
        figure.legend(lines.values(), lines, loc="outside lower center", ncols=len(lines), frameon=False)
    with whole_file(path) as beside:
        figure.savefig(beside, format="png")


def draw_spots(path: Path, panels: Mapping[str, Mapping[str, Spot]], across: str) -> None:
    """One panel beside another, each with spots, their names beside them and their intervals upright through them.

    Args:
        path: the PNG file.
        panels: title -> name of a spot -> where it is.
        across: label of every x axis.

    Raises:
        UserError: matplotlib is not installed.
    """
    figure = _figure_class()(figsize=(4.2 * len(panels), 3.2), layout="constrained", dpi=120)
    for axes, (title, spots) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for name, (x, (mean, low, high)) in spots.items():
            axes.errorbar([x], [mean], yerr=[[mean - low], [high - mean]], fmt="o", markersize=5, capsize=3)
            axes.annotate(name, (x, mean), xytext=(6, 4), textcoords="offset points", fontsize="small")
        axes.margins(x=0.25, y=0.15)
        axes.set(title=title, xlabel=across)
        axes.grid(alpha=0.25)
    with whole_file(path) as beside:
        figure.savefig(beside, format="png")


def draw_bands(path: Path, panels: Mapping[str, Mapping[str, Sequence[Spot]]], across: str) -> None:
    """One panel beside another, each with curves whose points have intervals; a name has one colour.

    Args:
        path: the PNG file.
        panels: title -> name of a curve -> its points.
        across: label of every x axis.

    Raises:
        UserError: matplotlib is not installed.
    """
    figure = _figure_class()(figsize=(4.2 * len(panels), 3.2), layout="constrained", dpi=120)
    colours = {name: f"C{place}" for place, name in enumerate(dict.fromkeys(n for one in panels.values() for n in one))}
    for axes, (title, curves) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        for name, points in curves.items():
            ends = [[mean - low for _, (mean, low, _) in points], [high - mean for _, (mean, _, high) in points]]
            means = [mean for _, (mean, _, _) in points]
            style = {"fmt": "o-", "markersize": 4, "capsize": 3, "linewidth": 1.4}
            axes.errorbar([x for x, _ in points], means, yerr=ends, color=colours[name], label=name, **style)
        axes.set(title=title, xlabel=across)
        axes.grid(alpha=0.25)
        if len(curves) > 1:
            axes.legend(frameon=False)
    with whole_file(path) as beside:
        figure.savefig(beside, format="png")


def draw_stacks(
    path: Path,
    stacks: Mapping[str, Mapping[str, float]],
    upright: str,
    limit: tuple[str, float] | None = None,
    title: str = "",
) -> None:
    """Columns beside each other, each a stack of parts; a part has one colour in all of them.

    Args:
        path: the PNG file.
        stacks: name of a column -> its parts from the bottom up, by name.
        upright: label of the y axis.
        limit: a line across all columns: what it is, and how high.
        title: above it all.

    Raises:
        UserError: matplotlib is not installed.
    """
    figure = _figure_class()(figsize=(5.2 + 0.9 * len(stacks), 4.4), layout="constrained", dpi=120)
    axes = figure.subplots()
    names = list(dict.fromkeys(name for parts in stacks.values() for name in parts))
    bottom = [0.0] * len(stacks)
    for place, name in enumerate(names):
        heights = [parts.get(name, 0.0) for parts in stacks.values()]
        shade = {"color": f"C{place % 10}", "alpha": 1.0 if place < 10 else 0.55}
        axes.bar(range(len(stacks)), heights, bottom=bottom, label=name, width=0.6, **shade)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(range(len(stacks)), stacks)
    axes.set(ylabel=upright, title=title)
    if limit is not None:
        axes.axhline(limit[1], color="black", linestyle="--", linewidth=1.0, label=limit[0])
    axes.grid(alpha=0.25, axis="y")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", frameon=False, fontsize="small")
    with whole_file(path) as beside:
        figure.savefig(beside, format="png")


def draw_heat_map(
    path: Path, values: Sequence[Sequence[float]], rows: Sequence[str], columns: Sequence[str], title: str = ""
) -> None:
    """A field of numbers from 0 (white) to the largest (dark), such as where a decoder looked for each of its tokens.

    Args:
        path: the PNG file.
        values: a list for each row.
        rows: names, from the top down; spaces and control characters are made visible.
        columns: names, from left to right.
        title: above the field.

    Raises:
        UserError: matplotlib is not installed, or no font here has the characters of the names.
    """
    figure_class = _figure_class()
    names = [[_visible(name) for name in side] for side in (rows, columns)]
    fonts = _fonts_for("".join([*names[0], *names[1], title]))
    figure = figure_class(figsize=(_inches(columns, rows), _inches(rows, columns)), layout="constrained", dpi=120)
    axes = figure.subplots()
    axes.imshow(values, cmap="Blues", vmin=0.0, aspect="equal", interpolation="nearest")
    text = {"fontfamily": fonts, "parse_math": False}
    axes.set_yticks(range(len(rows)), names[0], **text)
    axes.set_xticks(range(len(columns)), names[1], **text)
    axes.xaxis.tick_top()
    for label in axes.get_xticklabels():
        label.set_rotation(0 if len(label.get_text()) <= 2 else 90)
    axes.tick_params(length=0)
    axes.set_title(title, **text)
    with whole_file(path) as beside:
        figure.savefig(beside, format="png")


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("no plot: matplotlib is missing", mend="pip install 'intaglio[train]'") from error
    return Figure


def _inches(along: Sequence[str], across: Sequence[str]) -> float:
    """Length of a side: its cells, and the names that stand before them."""
    return min(0.6 + 0.3 * len(along) + 0.1 * max(map(len, across), default=0), 60.0)


def _visible(name: str) -> str:
    shown = name.replace(" ", "␣")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def _fonts_for(text: str) -> list[str]:
    """Families that together have every character of `text`: matplotlib's own, and the installed ones it lacks.

    Raises:
        UserError: no font here has one of them; names it.
    """
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    families = ["DejaVu Sans"]
    missing = set(text) - _characters(font_manager.findfont(families[0]))
    installed = sorted(font_manager.findSystemFonts()) if missing else []
    for file in installed:
        found = missing & _characters(file)
        if found:
            font_manager.fontManager.addfont(file)
            families.append(FT2Font(file).family_name)
            missing -= found
    if missing:
        mend = "`make system` installs one, as does apt-get install fonts-wqy-microhei"
        raise UserError(f"no plot: no font here shows {min(missing)!r}", mend=mend)
    return families


def _characters(file: str) -> set[str]:
    """What a font file has glyphs for; nothing where it cannot be read."""
    from matplotlib.ft2font import FT2Font

    try:
        return set(map(chr, FT2Font(file).get_charmap()))
    except (OSError, RuntimeError):
        return set()
