"""Measured roads as a table and as curves."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from intaglio.advice.outcome import Outcome, Verdict, break_even
from intaglio.evaluation.intervals import paired_difference

__all__ = ["COLUMNS", "curves", "reference_of", "rows", "sentence"]

COLUMNS = ("road", "right, %", "latency, s", "tokens read", "tokens made", "training, s", "index, s", "break-even")

_POINTS = 40

Curves = Mapping[str, Sequence[tuple[float, float]]]


def reference_of(outcomes: Sequence[Outcome]) -> Outcome | None:
    """What others are to be repaid against: the best road without training, if there is one."""
    untrained = [one for one in outcomes if not one.training_seconds]
    return max(untrained, key=lambda one: one.quality.mean, default=None)


def rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """A row of text for each road; the last cell is how many requests repay its training (see `reference_of`), or that
    it answers worse."""
    reference = reference_of(outcomes)
    return [(*_cells(one), _repaid(one, reference)) for one in outcomes]


def sentence(verdict: Verdict, requests: int) -> str:
    """Who wins, and why."""
    winner, best = verdict.winner, verdict.best
    if winner is None:
        return "no road has a single answer right"
    mean, low, high = (100 * value for value in winner.quality)
    others = [name for name in verdict.enough if name != winner.name]
    over = f", cheaper for {requests:,} requests than {', '.join(others)}" if others else ", the only one good enough"
    said = f"winner: {winner.name}, {mean:.1f} % right [{low:.1f}, {high:.1f}]{over}"
    if winner is best:
        return said
    mean, low, high = (100 * value for value in verdict.behind)
    return f"{said}; {best.name} is {mean:.1f} points above it [{low:.1f}, {high:.1f}]"


def curves(outcomes: Sequence[Outcome], requests: int) -> dict[str, Curves]:
    """Two panels over requests: seconds in all, and seconds for each right answer (of roads that have any)."""
    across = np.linspace(1, 2 * requests, _POINTS)
    good = [one for one in outcomes if one.quality.mean > 0]
    return {
        "seconds in all": {one.name: [(n, one.total(n)) for n in across] for one in outcomes},
        "seconds for each right answer": {
            one.name: [(n, one.total(n) / (n * one.quality.mean)) for n in across[1:]] for one in good
        },
    }


def _cells(one: Outcome) -> tuple[str, ...]:
    mean, low, high = (100 * value for value in one.quality)
    return (
        one.name + _chosen(one),
        f"{mean:.1f} [{low:.1f}, {high:.1f}]",
        f"{one.latency:.2f}",
        f"{one.prompt_tokens:.0f}",
        f"{one.answer_tokens:.0f}",
        f"{one.training_seconds:.0f}" if one.training_seconds else "-",
        f"{one.index_seconds:.0f}" if one.index_seconds else "-",
    )


def _chosen(one: Outcome) -> str:
    """What stands in the prompt, and how much of it."""
    count, word = (one.shots, "example") if one.shots else (one.passages, "passage")
    return f" ({count} {word}{'s' * (count > 1)})" if count else ""


def _repaid(one: Outcome, reference: Outcome | None) -> str:
    if not one.training_seconds or reference is None:
        return "-"
    if paired_difference(one.scores, reference.scores).high < 0:
        return "worse"
    requests = break_even(one, reference)
    return "never" if math.isinf(requests) else f"{math.ceil(requests):,}"
