"""How a command of ours ended."""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Ran", "Run"]


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """The one line of a user's mistake."""
        assert (self.status, self.out) == (2, ""), self
        assert self.err.startswith("intaglio: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.strip()


Run = Callable[..., Ran]
"""Runs `intaglio` with arguments and, as `stdin`, text on standard input."""
