"""How a command of ours ended; and training without what takes longer than a tiny run."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

__all__ = ["Ran", "Run", "unmeasured"]


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


def unmeasured(patch: pytest.MonkeyPatch) -> None:
    """Runs draw no pictures, and do not measure how fast the machine multiplies."""
    for name in ("draw_log", "draw_reward_kl"):
        patch.setattr(f"intaglio.training.run.{name}", lambda *arguments: None)
    patch.setattr("intaglio.training.run.measured_peak", lambda dtype, device: 1e9)
