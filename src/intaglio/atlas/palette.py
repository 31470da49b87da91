"""The figures' colours, on light paper and on dark, and the rules that dress an SVG in them.

Classes: `ink`, `faint`, `strong` of letters; `grid`, `axis`, `box`, `arrow` of lines, and `halo` of one beside an
arrow, where the ground may be dark; `s0` to `s5` of curves, whose dashes tell them apart without colour; `b0` to `b4`
of areas, from the strongest to the faintest in any colour, with `on0` to `on4` of letters upon them; `heat` of cells,
whose strength is their opacity.
"""

from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["AREAS", "COLOURS", "CURVES", "rules", "rules_of_a_file"]

Fill = Callable[[str, str], str]
"""From a light and a dark colour to what stands in a rule."""

COLOURS: Final[dict[str, tuple[str, str]]] = {
    "paper": ("#fbfaf6", "#161513"),
    "sheet": ("#f2f0e9", "#21201d"),
    "ink": ("#23211d", "#e9e5dd"),
    "faint": ("#625c52", "#a8a196"),
    "line": ("#d8d3c7", "#403c36"),
    "heat": ("#173f63", "#a9d3f5"),
}
"""Light and dark."""

CURVES: Final = (
    ("#8a2a17", "#f2a08a", ""),
    ("#1b6aa3", "#74b7ea", "7 3"),
    ("#3c8a31", "#98d07c", "2 3"),
    ("#a06f00", "#e3b75c", "9 3 2 3"),
    ("#7b4aa8", "#c9a8ee", "12 4"),
    ("#59636b", "#b3bcc3", "4 5"),
)
"""Light, dark and dashes of each curve."""

AREAS: Final = (
    ("#6b2a1c", "#f4cdbf", "#ffffff", "#1a1512"),
    ("#2b6ea3", "#8cc0ea", "#ffffff", "#10181f"),
    ("#65994a", "#6b9a51", "#0d120a", "#0d120a"),
    ("#e8c168", "#83641c", "#221a06", "#ffffff"),
    ("#e9e1f2", "#453a58", "#221c2b", "#ffffff"),
)
"""Light and dark of each area, and of the letters upon it."""

_FONTS: Final = (
    "system-ui, 'Helvetica Neue', Arial, 'Noto Sans', 'Noto Sans SC', 'PingFang SC', 'Microsoft YaHei', "
    "'WenQuanYi Micro Hei', sans-serif"
)


def rules(fill: Fill) -> str:
    """The style sheet of every figure, each colour as `fill` writes it."""
    return "\n".join([*_plain(fill), *_curves(fill), *_areas(fill)])


def rules_of_a_file() -> str:
    """The same for an SVG that stands alone: the light colours, and the dark ones where the reader's system is dark."""
    light, dark = rules(lambda light, _: light), rules(lambda _, dark: dark)
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"


def _plain(fill: Fill) -> Iterator[str]:
    of = {name: fill(*pair) for name, pair in COLOURS.items()}
    yield f"svg text {{ fill: {of['ink']}; font-family: {_FONTS}; }}"
    yield f"svg .faint {{ fill: {of['faint']}; }}"
    yield "svg .strong { font-weight: 700; }"
    yield f"svg .grid {{ stroke: {of['line']}; fill: none; }}"
    yield f"svg .axis {{ stroke: {of['faint']}; fill: none; }}"
    yield f"svg .box {{ fill: {of['sheet']}; stroke: {of['faint']}; }}"
    yield f"svg .blank {{ fill: {of['paper']}; }}"
    yield f"svg .arrow {{ stroke: {of['ink']}; fill: none; stroke-width: 1.4; }}"
    yield f"svg .head {{ fill: {of['ink']}; }}"
    yield f"svg .halo {{ stroke: {of['paper']}; fill: none; stroke-width: 1.4; }}"
    yield f"svg .heat {{ fill: {of['heat']}; }}"


def _curves(fill: Fill) -> Iterator[str]:
    for place, (light, dark, dashes) in enumerate(CURVES):
        colour = fill(light, dark)
        dashed = f" stroke-dasharray: {dashes};" if dashes else ""
        yield f"svg .s{place} {{ stroke: {colour}; fill: none; stroke-width: 2; stroke-linejoin: round;{dashed} }}"
        yield f"svg .m{place} {{ stroke: {colour}; fill: {colour}; stroke-width: 1.6; }}"


def _areas(fill: Fill) -> Iterator[str]:
    for place, (light, dark, on_light, on_dark) in enumerate(AREAS):
        yield f"svg .b{place} {{ fill: {fill(light, dark)}; stroke: {fill(*COLOURS['paper'])}; }}"
        yield f"svg text.on{place} {{ fill: {fill(on_light, on_dark)}; }}"
