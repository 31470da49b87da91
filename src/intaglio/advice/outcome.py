"""What a road came to, and which road wins: the cheapest of those that are good enough, by measured numbers alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from intaglio.evaluation.intervals import Interval, bootstrap_mean, paired_difference

__all__ = ["Outcome", "Verdict", "break_even", "judge"]


@dataclass(frozen=True)
class Outcome:
    """The measurements of one road.

    Attributes:
        name: of the road.
        scores: (N,) of the test rows, 0 to 1 each.
        texts: (N,) what was answered.
        seconds: of those requests that were answered one by one.
        prompt_tokens, answer_tokens: of a request, on average.
        training_seconds: 0 where nothing trains.
        index_seconds: 0 where nothing is searched.
        shots: examples in the prompt.
        passages: in the prompt.
    """

    name: str
    scores: list[float]
    texts: list[str]
    seconds: list[float]
    prompt_tokens: float
    answer_tokens: float
    training_seconds: float
    index_seconds: float
    shots: int = 0
    passages: int = 0

    @cached_property
    def quality(self) -> Interval:
        """The mean score with its 95 % interval."""
        return bootstrap_mean(self.scores)

    @property
    def latency(self) -> float:
        """Seconds of a request, on average."""
        return float(np.mean(self.seconds))

    @property
    def setup_seconds(self) -> float:
        """What it costs before the first request."""
        return self.training_seconds + self.index_seconds

    def total(self, requests: float) -> float:
        """Seconds of so many requests, and of what came before them."""
        return self.setup_seconds + requests * self.latency

    def plain(self) -> dict[str, Any]:
        """As JSON, without the answers."""
        return {
            "road": self.name,
            "quality": self.quality._asdict(),
            "latency_s": {"mean": self.latency, "p95": float(np.quantile(self.seconds, 0.95))},
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.answer_tokens,
            "training_s": self.training_seconds,
            "index_s": self.index_seconds,
            "shots": self.shots,
            "passages": self.passages,
        }


@dataclass(frozen=True)
class Verdict:
    """Which road wins.

    Attributes:
        winner: the cheapest of `enough`; None where no road has anything right.
        best: the one of the highest quality.
        enough: the names of the roads that are good enough.
        behind: how far the best is above the winner, on the same rows.
    """

    winner: Outcome | None
    best: Outcome
    enough: list[str]
    behind: Interval

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        winner = self.winner.name if self.winner else None
        return {"winner": winner, "best": self.best.name, "good_enough": self.enough, "behind": self.behind._asdict()}


def judge(outcomes: Sequence[Outcome], requests: int, good_enough: float | None = None) -> Verdict:
    """The cheapest road for so many requests among those that are good enough.

    Good enough is a road whose interval lies above `good_enough`; without such a number, or where none reaches it, one
    that the best road is not shown to be better than: the interval of their difference on the same rows holds 0.
    """
    best = max(outcomes, key=lambda one: one.quality.mean)
    enough = [one for one in outcomes if good_enough is not None and one.quality.low >= good_enough]
    enough = enough or [one for one in outcomes if paired_difference(best.scores, one.scores).low <= 0]
    cheapest = min(enough, key=lambda one: one.total(requests))
    winner = cheapest if best.quality.mean > 0 else None
    return Verdict(winner, best, [one.name for one in enough], paired_difference(best.scores, cheapest.scores))


def break_even(road: Outcome, other: Outcome) -> float:
    """The requests from which on `road`, with what it costs before, is cheaper than `other`; infinite where never."""
    more = road.setup_seconds - other.setup_seconds
    saved = other.latency - road.latency
    if more <= 0:
        return 0.0 if saved >= 0 else math.inf
    return more / saved if saved > 0 else math.inf
