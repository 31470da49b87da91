"""What an objective tells of a micro-batch beside its loss, so that those of a step make one number each.

Every kind knows how two of its own are joined; the number of a step is the same however it was cut into micro-batches.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from torch import Tensor

__all__ = ["Least", "Mean", "Metric", "Most", "Variance", "joined"]


class Metric(Protocol):
    """A number that can be joined with others of its kind."""

    @property
    def value(self) -> float | None:
        """What is logged; None where there was nothing to measure, and nothing is logged."""

    def join(self, other: Self) -> Self:
        """That of both micro-batches together."""


@dataclass(frozen=True)
class Mean:
    """A mean over things that may be fewer than the targets, such as the desirable answers of a batch.

    Attributes:
        total: their sum.
        count: how many, or the sum of their weights.
    """

    total: float
    count: float

    @classmethod
    def of(cls, values: Tensor) -> "Mean":
        """Of all values of a tensor, which may have none."""
        return cls(float(values.detach().double().sum()), values.numel())

    @property
    def value(self) -> float | None:
        """The mean; None of nothing."""
        return self.total / self.count if self.count else None

    def join(self, other: "Mean") -> "Mean":
        """The mean over both."""
        return Mean(self.total + other.total, self.count + other.count)


@dataclass(frozen=True)
class Variance:
    """The unbiased variance of some values (joined as in Chan, Golub and LeVeque 1979, equations 2.1).

    Attributes:
        mean: theirs.
        squares: the sum of their squared distances from it.
        count: how many.
    """

    mean: float
    squares: float
    count: int

    @classmethod
    def of(cls, values: Tensor) -> "Variance":
        """Of all values of a tensor, which may have none."""
        wide = values.detach().double()
        mean = float(wide.sum()) / max(wide.numel(), 1)
        return cls(mean, float((wide - mean).square().sum()), wide.numel())

    @property
    def value(self) -> float | None:
        """The variance; None of fewer than two."""
        return self.squares / (self.count - 1) if self.count > 1 else None

    def join(self, other: "Variance") -> "Variance":
        """That over both."""
        count, gap = self.count + other.count, other.mean - self.mean
        share = other.count / max(count, 1)
        squares = self.squares + other.squares + gap * gap * self.count * share
        return Variance(self.mean + gap * share, squares, count)


@dataclass(frozen=True)
class Least:
    """The least of some values."""

    value: float

    def join(self, other: "Least") -> "Least":
        """The lesser."""
        return Least(min(self.value, other.value))


@dataclass(frozen=True)
class Most:
    """The greatest of some values."""

    value: float

    def join(self, other: "Most") -> "Most":
        """The greater."""
        return Most(max(self.value, other.value))


def joined(parts: Iterable[Mapping[str, Metric]]) -> dict[str, float]:
    """The numbers of a step, or of an evaluation, from those of its micro-batches, by name."""
    found: dict[str, Metric] = {}
    for part in parts:
        for name, metric in part.items():
            found[name] = found[name].join(metric) if name in found else metric
    return {name: metric.value for name, metric in found.items() if metric.value is not None}
