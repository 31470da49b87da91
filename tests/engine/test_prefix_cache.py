"""The prefix cache: what is found, for whom, and what never may be."""

import pytest

from intaglio.engine import prefix_cache
from intaglio.engine.blocks import GONE, BlockPool
from intaglio.engine.prefix_cache import find_prefix
from intaglio.engine.scheduler import Scheduler
from intaglio.engine.sequence import Sequence
from slot_memory import SlotMemory, uncached

PROMPT = [0, 1, 2, 0, 2, 1, 1, 0, 2, 2]


def scheduler(*windows: int | None, blocks: int = 24) -> Scheduler:
    return Scheduler([BlockPool(blocks, 4, window) for window in windows or (None,)], 64, max_tokens_per_step=16)


def answered(memory: SlotMemory, prompt: list[int], new: int = 3, **options: object) -> Sequence:
    """The finished sequence of a request."""
    sequence = Sequence("r", list(prompt), max_tokens=new, **options)  # type: ignore[arg-type]
    memory.scheduler.add(sequence)
    memory.run()
    return sequence


def test_full_blocks_of_an_earlier_text_are_found() -> None:
    memory = SlotMemory(scheduler())
    first, second = answered(memory, PROMPT), answered(memory, PROMPT)
    assert (first.cached, second.cached) == (0, 8)
    assert first.made == second.made == uncached(PROMPT, 3)
    assert (memory.scheduler.prefix_queries, memory.scheduler.prefix_hits) == (20, 8)


def test_what_was_made_is_found_by_the_next_turn() -> None:
    memory = SlotMemory(scheduler())
    first = answered(memory, PROMPT, new=7)
    assert answered(memory, [*first.tokens, 1, 2]).cached == 16


def test_the_last_token_of_a_cached_prompt_is_computed() -> None:
    memory = SlotMemory(scheduler())
    answered(memory, PROMPT[:8])
    assert answered(memory, PROMPT[:8]).cached == 4


def test_a_text_that_differs_in_one_early_token_finds_nothing() -> None:
    memory = SlotMemory(scheduler())
    answered(memory, PROMPT)
    assert answered(memory, [1, *PROMPT[1:]]).cached == 0


def test_nothing_is_shared_between_salts() -> None:
    memory = SlotMemory(scheduler())
    answered(memory, PROMPT, salt=b"adapter")
    assert answered(memory, PROMPT).cached == 0
    assert answered(memory, PROMPT, salt=b"adapter").cached == 8


def test_a_salt_that_looks_like_a_digest_is_no_prefix() -> None:
    memory = SlotMemory(scheduler())
    first = answered(memory, PROMPT)
    assert answered(memory, PROMPT[4:], salt=first.keys[0].digest).cached == 0


def test_who_wants_every_output_reads_nothing_but_is_read() -> None:
    memory = SlotMemory(scheduler())
    answered(memory, PROMPT, reads_cache=False)
    assert answered(memory, PROMPT, reads_cache=False).cached == 0
    assert memory.scheduler.prefix_queries == 0
    assert answered(memory, PROMPT).cached == 8


def test_without_prefix_caching_nothing_is_found() -> None:
    memory = SlotMemory(Scheduler([BlockPool(24, 4)], 64, prefix_caching=False))
    answered(memory, PROMPT)
    assert answered(memory, PROMPT).cached == 0


def test_after_the_weights_have_changed_nothing_is_found() -> None:
    memory = SlotMemory(scheduler())
    answered(memory, PROMPT)
    memory.scheduler.forget_prefixes()
    assert answered(memory, PROMPT).cached == 0


def test_the_end_of_a_text_is_evicted_before_its_beginning() -> None:
    memory = SlotMemory(scheduler(blocks=6))
    answered(memory, PROMPT * 2)  # 5 blocks, all full, and a token made
    answered(memory, [2, 2, 1, 1, 0, 0, 2, 1])  # takes the block without contents, and two of them
    assert answered(memory, PROMPT * 2).cached == 12


# Case 11
def test_colliding_hashes_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "block_hash", lambda parent, tokens: b"constant")
    memory = SlotMemory(scheduler(blocks=8))
    twice = [0, 1, 2, 0] * 2
    for prompt in (PROMPT, [1, *PROMPT[1:]], twice, PROMPT[4:], [2, 2, 2, 2, *PROMPT[4:]], PROMPT, twice):
        assert answered(memory, prompt).made == uncached(prompt, 3)
    assert memory.scheduler.prefix_hits > 0


def test_a_window_needs_only_what_the_next_token_sees() -> None:
    memory = SlotMemory(scheduler(None, 6))
    text = answered(memory, PROMPT * 2)
    again = Sequence("again", PROMPT * 2)
    full, windowed = find_prefix(memory.scheduler.pools, again)
    assert (len(full), GONE in full) == (4, False)
    assert [block == GONE for block in windowed] == [True, True, False, False]
    assert answered(memory, PROMPT * 2).made == text.made == uncached(PROMPT * 2, 3)


def test_a_prefix_is_found_as_far_as_every_window_reaches() -> None:
    memory = SlotMemory(scheduler(None, 6))
    answered(memory, PROMPT * 2)
    full, windowed = memory.scheduler.pools
    block = windowed.find(answered(memory, PROMPT * 2).keys[3])
    assert block is not None
    windowed.forget(block)  # as if somebody had taken it
    assert [len(table) for table in find_prefix([full, windowed], Sequence("again", PROMPT * 2))] == [3, 3]
    assert answered(memory, PROMPT * 2).made == uncached(PROMPT * 2, 3)


# Case 13
def test_a_rewritten_history_is_not_found_by_the_old_hashes() -> None:
    memory = SlotMemory(scheduler())
    rewritten = Sequence("r", list(PROMPT), max_tokens=12)
    memory.scheduler.add(rewritten)
    while len(rewritten.made) < 9:
        memory.step()
    old = list(rewritten.tokens)
    memory.scheduler.rewind(rewritten, 6)  # inside the second block, which is full and can be found
    rewritten.tokens += [2, 2, 2, 1, 0, 1]
    new = list(rewritten.tokens)
    memory.run()
    assert [key.tokens for key in rewritten.keys] == [
        tuple(rewritten.tokens[start : start + 4]) for start in range(0, 4 * len(rewritten.keys), 4)
    ]
    for prompt in (new, old):
        assert answered(memory, prompt).made == uncached(prompt, 3)
    assert find_prefix(memory.scheduler.pools, Sequence("old", old[:9])) != [[]]


def test_a_shared_block_is_not_written_over_by_a_rewritten_history() -> None:
    memory = SlotMemory(scheduler())
    first, second = (Sequence(name, PROMPT[:8], max_tokens=12) for name in "ab")
    memory.scheduler.add(first)
    memory.step()
    memory.scheduler.add(second)
    memory.step()
    assert second.cached == 4
    memory.scheduler.rewind(second, 2)
    second.tokens += [1, 0, 1]
    assert [copy.source for copy in memory.step().copies] == [first.block_tables[0][0]]
    memory.run()


def test_rewinding_behind_a_window_begins_anew() -> None:
    memory = SlotMemory(scheduler(None, 6))
    sequence = Sequence("r", PROMPT * 2, max_tokens=12)
    memory.scheduler.add(sequence)
    while len(sequence.made) < 4:
        memory.step()
    memory.scheduler.rewind(sequence, 7)
    assert (sequence.status, sequence.computed) == ("waiting", 0)
    sequence.tokens += [1, 1]
    memory.run()
    assert memory.scheduler.pools[1].num_free == 24


def test_a_prefix_may_be_bounded() -> None:
    memory = SlotMemory(scheduler())
    answered(memory, PROMPT)
    found = [answered(memory, PROMPT, most_cached=most).cached for most in (0, 3, 4, 7, 8, 99)]
    assert found == [0, 0, 4, 4, 8, 8]
