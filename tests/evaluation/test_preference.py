"""Who wins: by scores, by a judge that has a favourite place, and pairs told apart before and after."""

from collections.abc import Sequence

import pytest

from intaglio.evaluation.preference import by_score, judged, more_right


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


def test_a_favourite_place_cancels_out() -> None:
    asked: list[tuple[str, str]] = []

    def judge(questions: Sequence[str], first: Sequence[str], second: Sequence[str]) -> list[float]:
        """Longer is better, and the first has a head start."""
        asked.extend(zip(first, second, strict=True))
        return [min(1.0, 0.8 * (len(a) > len(b)) + 0.4) for a, b in zip(first, second, strict=True)]

    contest = judged(
        judge, ["q", "q", "q", "q"], ["long one", "x", "same", "1234"], ["short", "much longer", "same", "abcd"]
    )
    assert contest.points.tolist() == pytest.approx([0.8, 0.2, 0.5, 0.5])
    assert ("same", "same") not in asked
    assert ("long one", "short") in asked
    assert ("short", "long one") in asked


def test_a_judge_is_not_asked_about_nothing() -> None:
    assert judged(lambda *sides: pytest.fail("asked"), ["q"], ["same"], ["same"]).ties == 1


def test_pairs_are_compared_with_themselves() -> None:
    before, after = [0.1, -0.2, -0.3, 0.0], [0.2, 0.1, -0.1, 0.5]
    gain = more_right(after, before)
    assert gain.mean == 0.5
    assert more_right(after, after) == (0.0, 0.0, 0.0)
