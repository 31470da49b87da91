"""Matrices with their numbers in them, alone or as a product in a row: the larger a number, the stronger its cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from intaglio.atlas.svg import Canvas

__all__ = ["CELL", "Matrix", "in_a_row", "matrix"]

CELL: Final = (29.0, 18.0)
"""Width and height of one number."""

_SIZE: Final = 10.0
_NAME: Final = 11.0
_STRONGEST: Final = 0.38  # opacity of a cell, upon which a number can still be read
_SPACE: Final = 3.0  # around a sign

Rows = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Matrix:
    """One of a product.

    Attributes:
        name: above it.
        values: row by row.
        splits: columns before which a line divides it.
    """

    name: str
    values: Rows
    splits: Sequence[int] = ()

    @property
    def width(self) -> float:
        """Of its picture."""
        return CELL[0] * len(self.values[0])

    @property
    def height(self) -> float:
        """The same, without its name."""
        return CELL[1] * len(self.values)


def matrix(canvas: Canvas, x: float, y: float, one: Matrix) -> None:
    """Its cells from the corner (x, y), its name above."""
    largest = max(abs(value) for row in one.values for value in row) or 1.0
    for down, row in enumerate(one.values):
        for across, value in enumerate(row):
            left, top = x + CELL[0] * across, y + CELL[1] * down
            shade = f'fill-opacity="{_STRONGEST * abs(value) / largest:.2f}"'
            canvas.rect(left, top, *CELL, "heat", more=shade, said=f"{value:.4f}")
            canvas.text(left + CELL[0] / 2, top + 13, _shown(value), size=_SIZE, anchor="middle")
    canvas.rect(x, y, one.width, one.height, "axis")
    for column in one.splits:
        canvas.line(x + CELL[0] * column, y, x + CELL[0] * column, y + one.height, "axis")
    canvas.text(x, y - 5, one.name, "faint", size=_NAME)


def in_a_row(canvas: Canvas, x: float, y: float, pieces: Sequence[Matrix | str]) -> float:
    """Matrices and the signs between them, from (x, y) to the right, all about one line; returns the y under them."""
    tallest = max(one.height for one in pieces if isinstance(one, Matrix))
    middle = y + 16 + tallest / 2
    for one in pieces:
        if isinstance(one, Matrix):
            matrix(canvas, x, middle - one.height / 2, one)
            x += one.width
        else:
            x += _SPACE + canvas.text(x + _SPACE, middle + 4, one, size=_NAME) + _SPACE
    return y + 16 + tallest


def _shown(value: float) -> str:
    """Two digits behind the point, and no zero with a sign."""
    return f"{value:.2f}".replace("-0.00", "0.00")
