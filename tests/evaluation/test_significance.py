"""The exact sign test is scipy's binomial test."""

import pytest

from intaglio.evaluation.significance import sign_test


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [(0, 0, 1.0), (1, 1, 1.0), (5, 5, 1.0), (6, 0, 0.03125), (0, 6, 0.03125), (9, 1, 0.021484375), (1, 0, 1.0)],
)
def test_by_hand(wins: int, losses: int, p: float) -> None:
    assert sign_test(wins, losses) == p


def test_it_is_scipys_binomtest() -> None:
    assert sign_test(37, 20) == pytest.approx(0.03314396778750544)
    assert sign_test(100, 140) == pytest.approx(0.01166409231767769)
    assert sign_test(1000, 1000) == 1
