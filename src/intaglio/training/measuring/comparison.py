"""What one model's answers are worth beside another's to the same prompts, as numbers with 95 % intervals over prompts.

A win rate is the share of prompts whose answer has the higher number, ties counting half. An interval is mean, low and
high.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from intaglio.evaluation.intervals import Interval, bootstrap_mean, paired_difference
from intaglio.evaluation.preference import by_score
from intaglio.training.measuring.interview import Interview

__all__ = ["compared"]


def compared(found: Interview, base: Interview, away: Sequence[float] | None) -> dict[str, Any]:
    """What is reported of one model.

    Args:
        found: its answers.
        base: those that they are held beside, row by row.
        away: nats from the base, of each prompt's answer; None where the two have not the same vocabulary.
    """
    return {
        "divergence": None if away is None else _listed(bootstrap_mean(away)),
        "length": _listed(bootstrap_mean(found.lengths)),
        "ended": _listed(bootstrap_mean(found.ended)),
        "length_gain": _listed(paired_difference(found.lengths, base.lengths)),
        "scores": dict(_judgements(found, base)),
    }


def _judgements(found: Interview, base: Interview) -> Iterator[tuple[str, dict[str, Any]]]:
    """By every judge: the mean, the gain over the base, and how often it wins; of what could be judged in both."""
    for name, scores in found.scores.items():
        ours, theirs = np.array(scores), np.array(base.scores[name])
        both = np.isfinite(ours) & np.isfinite(theirs)
        if not both.any():
            continue
        contest = by_score(ours[both], theirs[both])
        yield (
            name,
            {
                "rows": int(both.sum()),
                "mean": _listed(bootstrap_mean(ours[both])),
                "gain": _listed(paired_difference(ours[both], theirs[both])),
                "win_rate": _listed(contest.rate),
                "wins": contest.wins,
                "ties": contest.ties,
                "losses": contest.losses,
            },
        )


def _listed(interval: Interval) -> list[float]:
    return [*map(float, interval)]
