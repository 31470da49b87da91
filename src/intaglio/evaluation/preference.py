"""Who of two is preferred, question by question: by a score of each answer, or by a judge that reads both.

A tie counts half. What a win rate leaves open is said by an interval over questions (see `intervals`).

Legend: n questions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from intaglio.evaluation.intervals import Interval, bootstrap_mean, paired_difference

__all__ = ["Contest", "Judge", "by_score", "judged", "more_right"]

Judge = Callable[[Sequence[str], Sequence[str], Sequence[str]], Sequence[float]]
"""Given questions and two answers to each, how much it prefers the first: from 0 to 1, 0.5 being no preference."""


@dataclass(frozen=True)
class Contest:
    """One set of answers against another.

    Attributes:
        points: (n,) 1 for a win, 0.5 for a tie, 0 for a loss; between them where a judge was of two minds.
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


def judged(judge: Judge, questions: Sequence[str], ours: Sequence[str], theirs: Sequence[str]) -> Contest:
    """A judge's preference, asked in both orders and averaged, so that what it thinks of the first place cancels out.

    Equal answers are a tie, about which nobody is asked.
    """
    points = np.full(len(questions), 0.5)
    differ = [row for row, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]]
    asked, first, second = ([side[row] for row in differ] for side in (questions, ours, theirs))
    if differ:
        forwards, backwards = (np.asarray(judge(asked, *sides)) for sides in ((first, second), (second, first)))
        points[differ] = (forwards + 1 - backwards) / 2
    return Contest(points)


def more_right(after: ArrayLike, before: ArrayLike) -> Interval:
    """The gain in the share of pairs told apart rightly, each pair compared with itself.

    Args:
        after, before: (n,) margins of the better over the worse answer; above 0 is right.
    """
    right = [np.asarray(margins, dtype=np.float64) > 0 for margins in (after, before)]
    return paired_difference(*right)
