"""Who of two is preferred, question by question, by a score of each answer.

A tie counts half. What a win rate leaves open is said by an interval over questions (see `intervals`).

Legend: n questions.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from intaglio.evaluation.intervals import Interval, bootstrap_mean, paired_difference

__all__ = ["Contest", "by_score", "more_right"]


@dataclass(frozen=True)
class Contest:
    """One set of answers against another.

    Attributes:
        points: (n,) 1 for a win, 0.5 for a tie, 0 for a loss.
    """

    points: NDArray[np.float64]

    @property
    def wins(self) -> int:
        """Questions that were won."""
        return int((self.points > 0.5).sum())

    @property
    def ties(self) -> int:
        """Questions without a winner."""
        return int((self.points == 0.5).sum())

    @property
    def losses(self) -> int:
        """Questions that were lost."""
        return int((self.points < 0.5).sum())

    @property
    def rate(self) -> Interval:
        """The win rate, with its 95 % interval; better than chance where that lies above 0.5."""
        return bootstrap_mean(self.points)


def by_score(ours: ArrayLike, theirs: ArrayLike, *, within: float = 0.0) -> Contest:
    """The higher score wins.

    Args:
        ours, theirs: (n,) scores of answers to the same questions.
        within: scores that are no further apart are a tie.
    """
    first, second = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    assert first.shape == second.shape, "both answer the same questions"
    gap = first - second
    return Contest(np.where(np.abs(gap) <= within, 0.5, (gap > 0).astype(np.float64)))


def more_right(after: ArrayLike, before: ArrayLike) -> Interval:
    """The gain in the share of pairs told apart rightly, each pair compared with itself.

    Args:
        after, before: (n,) margins of the better over the worse answer; above 0 is right.
    """
    right = [np.asarray(margins, dtype=np.float64) > 0 for margins in (after, before)]
    return paired_difference(*right)
