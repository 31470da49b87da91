"""How sure a mean is: bootstrap intervals (Efron 1979), by percentiles of resampled means."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Interval", "bootstrap_mean", "bootstrap_ratio", "paired_difference"]

RESAMPLES = 10_000
BLOCK = 4_000_000  # drawn at a time, so that large sets need no memory of 10,000 times their size


class Interval(NamedTuple):
    """A mean and where it probably lies.

    Attributes:
        mean: of the sample.
        low, high: the interval of the asked confidence.
    """

    mean: float
    low: float
    high: float


def bootstrap_mean(values: ArrayLike, *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """The mean of `values` (n,), rows being independent. The same seed gives the same interval."""
    sample = np.asarray(values, dtype=np.float64)
    assert sample.ndim == 1, "one number a row"
    assert sample.size, "no rows, no mean"
    tail = (1 - confidence) / 2
    low, high = np.quantile(_resampled_means(sample, np.random.default_rng(seed)), (tail, 1 - tail))
    return Interval(float(sample.mean()), float(low), float(high))


def bootstrap_ratio(above: ArrayLike, below: ArrayLike, *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """The sum of `above` over the sum of `below`, both (n,) on the same rows, such as nats and tokens of documents.

    Rows are drawn whole, so that one with much below counts for much in every draw.
    """
    first, second = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    assert first.shape == second.shape, "both on the same rows"
    assert second.sum() > 0, "nothing to divide by"
    tail = (1 - confidence) / 2
    means = [_resampled_means(sample, np.random.default_rng(seed)) for sample in (first, second)]  # the same draws
    low, high = np.quantile(means[0] / np.maximum(means[1], np.finfo(np.float64).tiny), (tail, 1 - tail))
    return Interval(float(first.sum() / second.sum()), float(low), float(high))


def paired_difference(a: ArrayLike, b: ArrayLike, *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """The mean of a - b, both (n,) on the same rows: resampling rows, not systems, takes the rows' own difficulty out.

    The difference is real at that confidence where the interval leaves 0 out.
    """
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    assert first.shape == second.shape, "both on the same rows"
    return bootstrap_mean(first - second, confidence=confidence, seed=seed)


def _resampled_means(sample: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """(RESAMPLES,): means of as many draws of n rows with replacement."""
    rows = max(BLOCK // sample.size, 1)
    blocks = [min(rows, RESAMPLES - done) for done in range(0, RESAMPLES, rows)]
    draws = (rng.integers(sample.size, size=(block, sample.size), dtype=np.int32) for block in blocks)
    return np.concatenate([sample[draw].mean(axis=1) for draw in draws])
