"""Intervals over seeds and items, and the verdicts that follow from them."""

import math

import numpy as np
import pytest

from intaglio.atlas.findings import Finding, claim, crossed_mean, shown_interval
from intaglio.evaluation.intervals import Interval


def test_over_seeds_alone_it_is_students_interval() -> None:
    mean, low, high = crossed_mean([1.0, 2.0, 3.0])
    reach = 4.303 * 1.0 / math.sqrt(3)  # t for two degrees of freedom, the deviation is 1
    assert (mean, low, high) == pytest.approx((2.0, 2.0 - reach, 2.0 + reach))


def test_items_that_differ_widen_it_though_all_seeds_agree() -> None:
    agreed = np.tile([0.0, 1.0, 1.0, 0.0], (3, 1))
    mean, low, high = crossed_mean(agreed)
    reach = 4.303 * math.sqrt(agreed[0].var(ddof=1) / 4)
    assert (mean, low, high) == pytest.approx((0.5, 0.5 - reach, 0.5 + reach))


@pytest.mark.parametrize("seeds", [2, 3, 4, 5])
def test_it_covers_the_truth_at_least_as_often_as_it_says(seeds: int) -> None:
    draw = np.random.default_rng(seeds)
    covered = 0
    for _ in range(400):
        shape = draw.normal(size=(seeds, 1)) + draw.normal(size=(1, 6)) + draw.normal(size=(seeds, 6))
        _, low, high = crossed_mean(shape)
        covered += low <= 0 <= high
    assert covered / 400 > 0.93  # 0.95 less three standard errors of 400 draws, rounded


def test_a_claim_is_shown_where_all_of_the_interval_is_above_0() -> None:
    assert claim("a is more than b", [1.0, 1.1, 0.9], "points").shown
    assert claim("a is more than b", [-1.0, -1.1, -0.9], "points").word == "the other way round"
    assert claim("a is more than b", [1.0, 9.0, 0.1], "points").word == "not decided at this scale"
    assert not claim("a is more than b", [0.0, 0.0, 0.0], "points").shown


def test_a_finding_is_plain_data() -> None:
    verdict = claim("it grows", [1.0, 1.0], "points")
    found = Finding("sizes", ("model", "size"), [("RNN", "1")], [verdict], {}, "tokens").plain()
    assert found["table"] == [{"model": "RNN", "size": "1"}]
    interval = {"mean": 1.0, "low": 1.0, "high": 1.0}
    assert found["verdicts"] == [
        {"claim": "it grows", "interval": interval, "unit": "points", "shown": True, "verdict": "shown"}
    ]


def test_an_interval_is_written_with_its_mean() -> None:
    assert crossed_mean([1000.0, 1000.0]) == Interval(1000.0, 1000.0, 1000.0)
    assert shown_interval([1000.0, 1000.0], 1) == "1,000.0 [1,000.0, 1,000.0]"
