"""What a stage of the demo is: something done, what came of it, and a number to tell it from the last time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = ["Desk", "Found", "Score", "Stage"]

Found = dict[str, Any]
"""What came of a stage, as JSON."""


@dataclass
class Desk:
    """What stages share.

    Attributes:
        folder: of this demo; each stage writes below it.
        quick: a third of the work.
        threads: of torch; None: as many as there are cores.
        say: told what happens.
        found: what came of the stages so far, by their names.
    """

    folder: Path
    quick: bool
    threads: int | None
    say: Callable[[str], None]
    found: dict[str, Found] = field(default_factory=dict)

    def sized(self, whole: int, quick: int) -> int:
        """An amount of work."""
        return quick if self.quick else whole


@dataclass(frozen=True)
class Score:
    """The number of a stage.

    Attributes:
        what: it is, for people.
        of: reads it from what came of the stage.
        best: which of two is better.
        form: how it is written, as `format` takes it.
        yardstick: reads what is to be beaten where no demo ran before, and says what that is; None: there is nothing.
    """

    what: str
    of: Callable[[Found], float]
    best: Literal["most", "least"]
    form: str = ".2f"
    yardstick: Callable[[Found], tuple[float, str]] | None = None

    def better(self, one: float, other: float) -> bool:
        """Whether `one` beats `other`."""
        return one > other if self.best == "most" else one < other


@dataclass(frozen=True)
class Stage:
    """One stage.

    Attributes:
        name: as results call it.
        about: one line for people.
        seconds: its budget on two idle cores, whole and quick.
        run: does it.
        score: its number.
        lines: what of it is shown, a line each.
    """

    name: str
    about: str
    seconds: tuple[int, int]
    run: Callable[[Desk], Found]
    score: Score
    lines: Callable[[Found], list[str]] = lambda found: []
