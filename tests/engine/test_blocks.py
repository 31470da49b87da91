"""Blocks: who holds them, in which order they are handed out, what is copied, and what a window gives back."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.engine.blocks import GONE, BlockKey, BlockPool


def key(name: str) -> BlockKey:
    return BlockKey(name.encode(), b"", (1, 2))


def held(pool: BlockPool, length: int) -> list[int]:
    """The table of a new text of `length` tokens."""
    table: list[int] = []
    pool.grow(table, 0, length)
    return table


def test_a_block_without_contents_goes_before_the_one_that_was_free_longest() -> None:
    pool = BlockPool(3, 2)
    a, b, c = (pool.allocate() for _ in range(3))
    pool.publish(a, key("a"))
    pool.publish(b, key("b"))
    for block in (b, a, c):
        pool.release(block)
    assert [pool.allocate() for _ in range(3)] == [c, b, a]


def test_a_free_block_is_found_and_taken_out_of_the_queue() -> None:
    pool = BlockPool(2, 2)
    a, b = pool.allocate(), pool.allocate()
    pool.publish(a, key("a"))
    pool.release(a)
    pool.release(b)
    assert pool.find(key("a")) == a
    pool.share(a)
    assert (pool.num_free, pool.references(a), pool.allocate()) == (1, 1, b)


def test_the_hash_is_dropped_before_a_block_is_handed_out() -> None:
    pool = BlockPool(1, 2)
    block = pool.allocate()
    pool.publish(block, key("a"))
    pool.release(block)
    assert pool.allocate() == block
    assert pool.find(key("a")) is None


def test_of_two_equal_blocks_one_is_found_and_the_other_may_go() -> None:
    pool = BlockPool(2, 2)
    first, second = pool.allocate(), pool.allocate()
    pool.publish(first, key("a"))
    pool.publish(second, key("a"))
    pool.release(second)
    assert pool.allocate() == second
    assert pool.find(key("a")) == first


def test_equal_digests_of_different_tokens_are_told_apart() -> None:
    pool = BlockPool(2, 2)
    block = pool.allocate()
    pool.publish(block, BlockKey(b"same", b"parent", (1, 2)))
    assert pool.find(BlockKey(b"same", b"parent", (1, 3))) is None
    assert pool.find(BlockKey(b"same", b"other", (1, 2))) is None
    assert pool.find(BlockKey(b"same", b"parent", (1, 2))) == block


def test_a_block_is_not_released_twice() -> None:
    pool = BlockPool(1, 2)
    pool.release(pool.allocate())
    with pytest.raises(AssertionError, match="free already"):
        pool.release(0)


def test_a_shared_block_is_copied_before_it_is_written() -> None:
    pool = BlockPool(4, 4)
    table = held(pool, 6)
    twin = list(table)
    for block in twin:
        pool.share(block)
    assert pool.missing(twin, 6, 7) == 1
    copy = pool.grow(twin, 6, 7)
    assert copy == (table[1], twin[1])
    assert table[1] != twin[1]
    assert table[0] == twin[0]
    assert pool.missing(table, 6, 7) == 0, "nobody else names it any more"
    assert pool.grow(table, 6, 7) is None


def test_nothing_is_copied_where_a_new_block_begins() -> None:
    pool = BlockPool(4, 4)
    table = held(pool, 8)
    for block in table:
        pool.share(block)
    assert pool.missing(table, 8, 9) == 1
    assert pool.grow(table, 8, 9) is None


def test_a_block_that_is_written_again_is_not_found_any_more() -> None:
    pool = BlockPool(2, 4)
    table = held(pool, 4)
    pool.publish(table[0], key("a"))
    pool.grow(table, 3, 4)
    assert pool.find(key("a")) is None


def test_blocks_behind_the_window_are_given_back_once() -> None:
    pool = BlockPool(6, 4, window=5)
    table = held(pool, 20)
    pool.give_back(table, 12)  # token 12 sees 8 and what follows
    assert (table[:2], GONE in table[2:], pool.num_free) == ([GONE, GONE], False, 3)
    pool.give_back(table, 13)
    pool.give_back(table, 16)
    assert (table.count(GONE), pool.num_free) == (3, 4)
    pool.cut(table, 0)
    assert (table, pool.num_free) == ([], 6)


@given(st.integers(1, 9), st.integers(1, 40), st.none() | st.integers(1, 12), st.lists(st.integers(1, 9), min_size=1))
def test_no_sequence_needs_more_blocks_than_its_peak(
    block_size: int, most: int, window: int | None, chunks: list[int]
) -> None:
    pool = BlockPool(400, block_size, window)
    table: list[int] = []
    computed = 0
    for chunk in chunks:
        pool.grow(table, computed, computed + chunk)
        computed += chunk
        assert pool.num_blocks - pool.num_free <= pool.peak(computed, max(chunks))
        pool.give_back(table, computed)
    assert len(table) * block_size - computed < block_size


def test_what_a_block_of_16_wastes_beside_a_contiguous_reservation() -> None:
    """The published claim: under 4 % wasted, where a reservation of the longest length allowed wasted most."""
    draw = random.Random(0)
    lengths = [max(1, min(2048, round(draw.expovariate(1 / 400)))) for _ in range(500)]
    used = {}
    for block_size in (16, 2048):
        pool = BlockPool(500 * (2048 // block_size), block_size)
        slots = sum(len(held(pool, length)) * block_size for length in lengths)
        used[block_size] = sum(lengths) / slots
    assert used[16] > 0.96
    assert 0.15 < used[2048] < 0.25
