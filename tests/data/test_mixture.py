"""Mixtures: shares, caps and an order that is the same each time."""

from collections import Counter

import numpy as np
import pytest

from intaglio.data.examples import Example
from intaglio.data.mixture import Mixture, Part
from intaglio.data.store import InMemory
from intaglio.errors import UserError


def numbered(count: int, first: int = 0) -> InMemory:
    """Examples of one token, their number."""
    return InMemory([Example(np.array([first + n], np.int32), np.array([True]), f"f:{n}") for n in range(count)])


def read(mixture: Mixture, epoch: int, seed: int = 0) -> list[int]:
    return [int(window[i].ids[0]) for window in mixture.windows(epoch, seed) for i in range(len(window))]


def test_without_weights_everything_is_read_once_an_epoch_in_a_new_order() -> None:
    mixture = Mixture.of(numbered(30), numbered(20, 100))
    first, second = read(mixture, 0), read(mixture, 1)
    assert sorted(first) == sorted(second) == [*range(30), *range(100, 120)]
    assert first != second
    assert first == read(mixture, 0)
    assert first != read(mixture, 0, seed=1)
    assert max(first[:10]) >= 100  # the sources are interleaved


def test_a_source_gives_its_share_and_all_its_examples_come_equally_often() -> None:
    mixture = Mixture([Part(numbered(90), weight=1), Part(numbered(10, 100), weight=3)])
    assert mixture.counts == [25, 75]
    seen = Counter(token for epoch in range(18) for token in read(mixture, epoch))
    assert {seen[n] for n in range(90)} == {5}
    assert {seen[n] for n in range(100, 110)} == {135}


def test_shares_that_do_not_divide_still_make_a_whole_epoch() -> None:
    mixture = Mixture([Part(numbered(5, 100 * n), weight=1) for n in range(3)])
    assert sum(mixture.counts) == 15
    uneven = Mixture([Part(numbered(7, 100 * n), weight=w) for n, w in enumerate((0.2, 0.31, 0.49))])
    assert uneven.counts == [4, 7, 10]


def test_a_cap_keeps_the_same_examples_each_epoch() -> None:
    mixture = Mixture([Part(numbered(50), cap=8), Part(numbered(3, 100), cap=8)])
    first, second = read(mixture, 0), read(mixture, 1)
    assert mixture.counts == [8, 3]
    assert len(set(first)) == 11
    assert sorted(first) == sorted(second)
    assert sorted(first)[:8] != list(range(8))  # chosen, not cut off


def test_a_weight_of_zero_leaves_a_source_out() -> None:
    mixture = Mixture([Part(numbered(4), weight=0), Part(numbered(4, 100), weight=1)])
    assert set(read(mixture, 0)) == {100, 101, 102, 103}


def test_lengths_are_those_of_the_examples() -> None:
    stores = [
        InMemory([Example(np.zeros(n, np.int32), np.ones(n, bool), "") for n in sizes]) for sizes in ([3, 1], [2])
    ]
    (window,) = Mixture.of(*stores).windows(0, 0)
    assert window.lengths.tolist() == [len(window[i].ids) for i in range(3)]
    assert sorted(window.lengths.tolist()) == [1, 2, 3]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "a mixture of no data"),
        ([Part(numbered(1), weight=1), Part(numbered(1))], "1 of 2 sources have a weight"),
        ([Part(numbered(1), weight=-1)], "not negative"),
        ([Part(numbered(1), weight=float("nan"))], "finite"),
        ([Part(numbered(1), weight=0)], "not all zero"),
        ([Part(numbered(1), cap=0)], "source 0: a cap of 0"),
        ([Part(numbered(1), weight=1), Part(numbered(0), weight=1)], "source 1: a source with a weight and no"),
    ],
)
def test_mixtures_that_make_no_sense_are_refused(parts: list[Part], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Mixture(parts)
