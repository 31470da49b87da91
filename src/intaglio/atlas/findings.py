"""What a measured claim ends in: a table, curves, and verdicts that follow from intervals and from nothing else.

Legend: S seeds, N items (held-out rows, lengths, repetitions) of each seed, the same in all.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from intaglio.evaluation.intervals import Interval

__all__ = ["STUDENT", "Finding", "Verdict", "claim", "crossed_mean", "shown_interval"]

STUDENT: Final = (1.960, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)
"""The 97.5 % quantile of the normal distribution, and of Student's t with 1 to 12 degrees of freedom."""


@dataclass(frozen=True)
class Verdict:
    """One sentence, and whether the measurements bear it out.

    Attributes:
        claim: says that a quantity is above 0.
        interval: that quantity's mean and 95 % interval.
        unit: of the quantity.
    """

    claim: str
    interval: Interval
    unit: str

    @property
    def shown(self) -> bool:
        """Whether all of the interval is above 0."""
        return self.interval.low > 0

    @property
    def word(self) -> str:
        """The verdict in words: an interval that spans 0 decides nothing."""
        if self.shown:
            return "shown"
        return "the other way round" if self.interval.high < 0 else "not decided at this scale"


@dataclass(frozen=True)
class Finding:
    """What one group of claims came to.

    Attributes:
        title: what was measured.
        columns: of the table.
        rows: of the table, as text.
        verdicts: the claims.
        panels: title -> name of a curve -> its points; see `draw_curves`.
        across: what the curves run over.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    verdicts: Sequence[Verdict]
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]
    across: str

    def plain(self) -> dict[str, Any]:
        """As JSON; the curves stay in the picture."""
        verdicts = [
            {**asdict(v), "interval": v.interval._asdict(), "shown": v.shown, "verdict": v.word} for v in self.verdicts
        ]
        table = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"title": self.title, "table": table, "verdicts": verdicts}


def claim(sentence: str, values: ArrayLike, unit: str) -> Verdict:
    """The verdict on a quantity (S,) or (S, N) that the sentence says is above 0."""
    return Verdict(sentence, crossed_mean(values), unit)


def crossed_mean(values: ArrayLike) -> Interval:
    """The mean of (S,) or (S, N) measurements, and its 95 % interval over other seeds and other items.

    The variance of the seeds' means over S, and that of the items' means over N, are added (each holds a part of what
    seeds and items do together, which is thus counted twice: the interval is rather too wide), and the root is
    multiplied by Student's t for S - 1 degrees of freedom. Of one seed it is the interval over other items alone.
    """
    table = np.asarray(values, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    seeds, items = table.shape
    assert seeds <= len(STUDENT), f"{seeds} seeds"
    assert table.size > 1, "a single measurement has no interval"
    variance = table.mean(axis=1).var(ddof=1) / seeds if seeds > 1 else 0.0
    if items > 1:
        variance += table.mean(axis=0).var(ddof=1) / items
    mean, reach = float(table.mean()), STUDENT[seeds - 1] * math.sqrt(variance)
    return Interval(mean, mean - reach, mean + reach)


def shown_interval(values: ArrayLike, digits: int) -> str:
    """`mean [low, high]` of `crossed_mean`."""
    mean, low, high = crossed_mean(values)
    return f"{mean:,.{digits}f} [{low:,.{digits}f}, {high:,.{digits}f}]"
