"""The path of headings that a reader stands below."""

from typing import Final

__all__ = ["Titles"]

_LONGEST: Final = 100  # letters of a heading that are kept
_DEEPEST: Final = 6  # headings that are kept: what is further out says little of what is here


class Titles:
    """Headings by level, the outer ones first. A lower level is further out; what numbers they are does not matter."""

    def __init__(self) -> None:
        self._open: list[tuple[float, str]] = []

    def enter(self, level: float, title: str) -> None:
        """A heading: those of its level and below end."""
        self.leave(level)
        self._open.append((level, " ".join(title.split())[:_LONGEST]))

    def leave(self, level: float) -> None:
        """Ends the headings of a level and below."""
        self._open = [entry for entry in self._open if entry[0] < level]

    @property
    def innermost(self) -> float:
        """The level of the last heading; -1 where there is none."""
        return self._open[-1][0] if self._open else -1

    @property
    def path(self) -> str:
        """`Chapter > Section`, without headings that say nothing."""
        return " > ".join([title for _, title in self._open if title][-_DEEPEST:])
