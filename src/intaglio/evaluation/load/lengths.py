"""How long prompts and answers are: one number, or drawn from a range, a bell curve or a file."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from intaglio.errors import UserError
from intaglio.files import read_text

__all__ = ["Lengths", "parse_lengths"]


@dataclass(frozen=True)
class Lengths:
    """Lengths in tokens.

    Attributes:
        said: as the user said it.
        least: none is shorter.
        draw: one of them; never below 1.
    """

    said: str
    least: int
    draw: Callable[[random.Random], int]

    @classmethod
    def fixed(cls, length: int) -> "Lengths":
        """The same each time."""
        return cls(str(length), length, lambda dice: length)


def parse_lengths(text: str, where: str = "") -> Lengths:
    """Reads `128`, `64-256` (each as likely), `normal:128:32` (mean and deviation) or `@FILE` (a number a line).

    Raises:
        UserError: it is none of these; names `where`.
    """
    if text.startswith("@"):
        return _of_file(text, Path(text[1:]))
    try:
        if text.startswith("normal:"):
            mean, deviation = map(float, text.split(":")[1:])
            return _normal(text, mean, deviation)
        ends = [int(part) for part in text.split("-")]
        low, high = ends[0], ends[-1]
        if len(ends) > 2 or not 1 <= low <= high:
            raise ValueError
    except ValueError as error:
        mend = "such as 128, 64-256, normal:128:32 or @FILE"
        raise UserError(f"{text!r} is no length", where=where, mend=mend) from error
    return Lengths(text, low, lambda dice: dice.randint(low, high))


def _normal(text: str, mean: float, deviation: float) -> Lengths:
    if mean < 1 or deviation < 0:
        raise ValueError
    return Lengths(text, 1, lambda dice: max(1, round(dice.gauss(mean, deviation))))


def _of_file(text: str, file: Path) -> Lengths:
    lines = read_text(file).split()
    try:
        known = [int(line) for line in lines]
    except ValueError as error:
        raise UserError("has something that is no whole number", where=str(file)) from error
    if not known or min(known) < 1:
        raise UserError("has no lengths, or one below 1", where=str(file), mend="a number above 0 a line")
    return Lengths(text, min(known), lambda dice: dice.choice(known))
