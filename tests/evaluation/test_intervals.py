"""Bootstrap intervals against known distributions, and their coverage."""

import numpy as np
import pytest

from intaglio.evaluation import intervals
from intaglio.evaluation.intervals import bootstrap_mean, bootstrap_ratio, paired_difference


def test_an_interval_of_a_share_is_the_binomial_one() -> None:
    values = np.repeat([1, 0], [120, 280])  # 0.3, standard error sqrt(0.3 * 0.7 / 400) = 0.0229
    mean, low, high = bootstrap_mean(values)
    assert mean == 0.3
    assert low == pytest.approx(0.3 - 1.96 * 0.0229, abs=0.004)
    assert high == pytest.approx(0.3 + 1.96 * 0.0229, abs=0.004)


def test_more_confidence_is_wider() -> None:
    values = np.random.default_rng(0).normal(size=50)
    sure, unsure = bootstrap_mean(values, confidence=0.99), bootstrap_mean(values, confidence=0.5)
    assert sure.low < unsure.low < unsure.mean < unsure.high < sure.high


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    intervals_of = [bootstrap_mean(rng.exponential(size=40), confidence=0.9, seed=seed) for seed in range(150)]
    assert 0.82 < np.mean([low <= 1 <= high for _, low, high in intervals_of]) < 0.96


def test_pairs_take_the_difficulty_of_rows_out() -> None:
    rng = np.random.default_rng(1)
    difficulty = rng.normal(scale=5, size=200)
    a, b = difficulty + 0.5 + rng.normal(scale=0.5, size=200), difficulty + rng.normal(scale=0.5, size=200)
    paired = paired_difference(a, b)
    assert 0 < paired.low < 0.5 < paired.high < 1
    assert paired.high - paired.low < (bootstrap_mean(a).high - bootstrap_mean(a).low) / 4


def test_equal_systems_differ_by_nothing() -> None:
    assert paired_difference([1, 0, 1], [1, 0, 1]) == (0, 0, 0)


def test_a_seed_decides_all() -> None:
    values = np.random.default_rng(0).normal(size=30)
    assert bootstrap_mean(values, seed=3) == bootstrap_mean(values, seed=3) != bootstrap_mean(values, seed=4)


def test_drawing_in_blocks_draws_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "BLOCK", 3000)
    means = intervals._resampled_means(np.arange(7.0), np.random.default_rng(0))
    assert means.shape == (intervals.RESAMPLES,)
    assert means.mean() == pytest.approx(3, abs=0.05)


def test_a_ratio_is_of_sums_and_rows_are_drawn_whole() -> None:
    rng = np.random.default_rng(3)
    below = rng.integers(1, 100, size=200)
    above = 2.0 * below
    assert bootstrap_ratio(above, below) == pytest.approx((2, 2, 2))
    above = above + rng.normal(scale=10, size=200)
    mean, low, high = bootstrap_ratio(above, below)
    assert mean == pytest.approx(above.sum() / below.sum())
    spread = 1.96 * (above - mean * below).std() / below.mean() / np.sqrt(200)  # by the delta method
    assert (high - low) / 2 == pytest.approx(spread, rel=0.1)
    assert bootstrap_ratio([3, 0], [2, 0]).mean == 1.5
