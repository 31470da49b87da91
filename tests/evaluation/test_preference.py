"""Who wins by scores, and pairs told apart before and after."""

import pytest

from intaglio.evaluation.preference import by_score, more_right


def test_the_higher_score_wins_and_a_tie_is_half() -> None:
    contest = by_score([1.0, 2.0, 3.0, 3.0], [2.0, 1.0, 3.0, 0.0])
    assert contest.points.tolist() == [0.0, 1.0, 0.5, 1.0]
    assert (contest.wins, contest.ties, contest.losses) == (2, 1, 1)
    assert contest.rate.mean == 0.625
    assert contest.rate.low < 0.625 < contest.rate.high


def test_scores_that_are_near_enough_are_a_tie() -> None:
    assert by_score([1.0, 1.0], [1.05, 1.2], within=0.1).points.tolist() == [0.5, 0.0]


def test_each_side_has_what_the_other_has_not() -> None:
    ours, theirs = [0.3, 0.7, 0.7, 0.1], [0.5, 0.7, 0.2, 0.0]
    assert by_score(ours, theirs).rate.mean == pytest.approx(1 - by_score(theirs, ours).rate.mean)


def test_pairs_are_compared_with_themselves() -> None:
    before, after = [0.1, -0.2, -0.3, 0.0], [0.2, 0.1, -0.1, 0.5]
    gain = more_right(after, before)
    assert gain.mean == 0.5
    assert more_right(after, after) == (0.0, 0.0, 0.0)
