"""Symbols of a network's wiring: values as small columns beside their wire, signs in circles, joints, boxes."""

from collections.abc import Sequence
from typing import Final

from intaglio.atlas.svg import Canvas

__all__ = ["bars", "box", "joint", "mark_right", "sign"]

_GAP: Final = 2.0  # between columns


def bars(
    canvas: Canvas,
    x: float,
    y: float,
    values: Sequence[float],
    *,
    most: float = 1.0,
    thick: float = 8.0,
    tall: float = 30.0,
    signed: bool = True,
) -> float:
    """Columns from a line: up for what is positive, down for the negative.

    Args:
        x, y: the middle of the left end.
        most: the value whose column is as high as there is room.
        tall: of both halves together; of the one half where values are not `signed`.

    Returns:
        The width.
    """
    length = tall / 2 if signed else tall
    base = y if signed else y + tall / 2
    wide = (thick + _GAP) * len(values)
    for place, value in enumerate(values):
        high = min(abs(value) / most, 1.0) * length
        at = (x + (thick + _GAP) * place, base - high if value > 0 else base)
        canvas.rect(*at, thick, high, "b1", said=f"{value:.3f}")
    canvas.line(x - 1, base, x + wide - 1, base, "axis")
    return wide


def sign(canvas: Canvas, x: float, y: float, letter: str) -> None:
    """`+` or `×` in a circle of radius 10 about (x, y)."""
    canvas.parts.append(f'<circle class="box" cx="{x:.1f}" cy="{y:.1f}" r="10"/>')
    slant = 3.6 if letter == "×" else 0.0
    first, second = ((-slant, -slant), (-slant, slant)) if slant else ((-5.0, 0.0), (0.0, -5.0))
    for dx, dy in (first, second):
        canvas.path(f"M{x + dx:.1f} {y + dy:.1f}L{x - dx:.1f} {y - dy:.1f}", "arrow")


def joint(canvas: Canvas, x: float, y: float) -> None:
    """Where one wire leaves another; wires that only cross have none."""
    canvas.parts.append(f'<circle class="head" cx="{x:.1f}" cy="{y:.1f}" r="2.8"/>')


def box(canvas: Canvas, x: float, y: float, words: str, *, wide: float = 46.0, tall: float = 24.0) -> None:
    """A function in a box whose middle is (x, y)."""
    canvas.rect(x - wide / 2, y - tall / 2, wide, tall, "box", round_by=4)
    canvas.text(x, y + 4, words, size=11, anchor="middle")


def mark_right(canvas: Canvas, x: float, y: float, letter: str, *, right: bool, side: float = 22.0) -> None:
    """A letter in a square about (x, y), which is filled where the letter is wrong."""
    canvas.rect(x - side / 2, y - side / 2, side, side, "box" if right else "b0", round_by=3)
    canvas.text(x, y + 4, letter, "ink" if right else "on0", size=12 if len(letter) == 1 else 10, anchor="middle")
