"""Packing: nothing lost, nothing twice, no row too long, and as few rows as the method can."""

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.data.packing import Method, Piece, efficiency, pack

METHODS: tuple[Method, ...] = ("best_fit", "contiguous", "none")
LENGTHS = st.lists(st.integers(1, 16), max_size=60)


def rows_by_trying_every_row(lengths: list[int], capacity: int) -> list[list[int]]:
    """Best-fit-decreasing as a textbook states it."""
    rows: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        rooms = [capacity - sum(lengths[i] for i in row) for row in rows]
        fitting = [(room, row) for row, room in enumerate(rooms) if room >= lengths[index]]
        if fitting:
            rows[min(fitting)[1]].append(index)
        else:
            rows.append([index])
    return rows


@given(LENGTHS, st.sampled_from(METHODS), st.integers(16, 40), st.integers(0, 5))
def test_every_token_is_in_one_row_and_no_row_is_too_long(
    lengths: list[int], method: Method, capacity: int, seed: int
) -> None:
    rows = pack(lengths, capacity, method).shuffled(np.random.default_rng(seed))
    seen: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows:
        assert 0 < sum(stop - start for _, start, stop in row) <= capacity
        for index, start, stop in row:
            assert start < stop
            seen[index] += range(start, stop)
    assert {index: sorted(tokens) for index, tokens in seen.items()} == {
        index: list(range(length)) for index, length in enumerate(lengths)
    }


@given(LENGTHS, st.integers(16, 40))
def test_best_fit_fills_rows_as_a_textbook_does(lengths: list[int], capacity: int) -> None:
    """Which of two equally full rows takes a sample is free, how full rows get is not."""
    rows = [sum(piece.stop for piece in row) for row in pack(lengths, capacity, "best_fit")]
    textbook = [sum(lengths[index] for index in row) for row in rows_by_trying_every_row(lengths, capacity)]
    assert sorted(rows) == sorted(textbook)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 40))
def test_contiguous_keeps_the_order_and_fills_every_row_but_the_last(lengths: list[int], capacity: int) -> None:
    rows = pack(lengths, capacity, "contiguous")
    assert len(rows) == -(-sum(lengths) // capacity)
    assert [sum(stop - start for _, start, stop in row) for row in rows[:-1]] == [capacity] * (len(rows) - 1)
    tokens = [(piece.sample, place) for row in rows for piece in row for place in range(piece.start, piece.stop)]
    assert tokens == [(index, place) for index, length in enumerate(lengths) for place in range(length)]


def test_contiguous_cuts_a_document_at_the_border() -> None:
    rows = list(pack([3, 4, 9], 6, "contiguous"))
    assert rows == [[(0, 0, 3), (1, 0, 3)], [(1, 3, 4), (2, 0, 5)], [(2, 5, 9)]]
    assert rows[1][0] == Piece(sample=1, start=3, stop=4)


def test_efficiency_is_the_share_of_places_with_a_token() -> None:
    rows = pack([6, 5, 4, 3], 9, "best_fit")
    assert [[piece.sample for piece in row] for row in rows] == [[0, 3], [1, 2]]
    assert efficiency(rows, 9) == 1.0
    assert efficiency(pack([6, 5, 4, 3], 9, "none"), 9) == 0.5
    assert efficiency(pack([], 9, "none"), 9) == 1.0


@pytest.mark.parametrize("method", ["best_fit", "none"])
def test_a_sample_longer_than_a_row_is_refused_where_it_cannot_be_cut(method: Method) -> None:
    with pytest.raises(AssertionError, match="a sample of 7 tokens for rows of 6"):
        pack([2, 7], 6, method)


def test_a_hundred_thousand_chats_leave_few_places_empty() -> None:
    lengths = np.random.default_rng(0).lognormal(5.5, 0.7, 100_000).astype(int).clip(1, 1024)
    assert efficiency(pack(lengths, 1024, "best_fit"), 1024) > 0.99
