"""The scheduler, decision by decision: order, chunks, preemption, forks, and what is refused."""

import pytest

from intaglio.engine.blocks import BlockPool
from intaglio.engine.scheduler import Scheduler, Step
from intaglio.engine.sequence import Sequence, Status
from intaglio.errors import UserError
from slot_memory import SlotMemory, check_invariants, uncached


def scheduler(blocks: int = 8, window: int | None = None, max_model_len: int = 128, **options: object) -> Scheduler:
    """Blocks of 4 tokens."""
    return Scheduler([BlockPool(blocks, 4, window)], max_model_len, **options)  # type: ignore[arg-type]


def request(name: str, length: int, new: int | None = 4, first: int = 0, **options: object) -> Sequence:
    """A request whose prompt has no token in common with those that begin otherwise."""
    return Sequence(name, list(range(first, first + length)), max_tokens=new, **options)  # type: ignore[arg-type]


def parts(step: Step) -> list[tuple[str, int, int]]:
    return [(part.sequence.request_id, part.start, part.count) for part in step.scheduled]


def test_a_prompt_is_computed_in_chunks_and_samples_at_its_end() -> None:
    memory = SlotMemory(scheduler(max_tokens_per_step=4))
    sequence = request("a", 10, new=2)
    memory.scheduler.add(sequence)
    steps = memory.run()
    assert [parts(step) for step in steps] == [[("a", 0, 4)], [("a", 4, 4)], [("a", 8, 2)], [("a", 10, 1)]]
    assert [part.samples for step in steps for part in step.scheduled] == [False, False, True, True]
    assert sequence.made == uncached(list(range(10)), 2)
    assert memory.scheduler.pools[0].num_free == 8


def test_running_sequences_come_before_waiting_ones() -> None:
    memory = SlotMemory(scheduler(max_tokens_per_step=6))
    for sequence in (request("a", 4), request("b", 12, first=50)):
        memory.scheduler.add(sequence)
    assert [parts(memory.step()) for _ in range(3)] == [
        [("a", 0, 4), ("b", 0, 2)],
        [("a", 4, 1), ("b", 2, 5)],
        [("a", 5, 1), ("b", 7, 5)],
    ]


def test_no_more_run_than_may() -> None:
    memory = SlotMemory(scheduler(max_sequences=2))
    for name in "abc":
        memory.scheduler.add(request(name, 2, first=ord(name)))
    assert [name for name, _, _ in parts(memory.step())] == ["a", "b"]
    assert memory.scheduler.waiting[0].request_id == "c"
    memory.run()


def test_the_one_that_came_last_is_preempted_and_nobody_admitted_beside() -> None:
    memory = SlotMemory(scheduler(blocks=6))
    for name, length in (("a", 8), ("b", 12), ("c", 1)):
        memory.scheduler.add(request(name, length, first=ord(name), new=8))
    assert [name for name, _, _ in parts(memory.step())] == ["a", "b", "c"]
    step = memory.step()
    assert (parts(step), [sequence.request_id for sequence in step.preempted]) == ([("a", 8, 1)], ["c", "b"])
    assert [sequence.request_id for sequence in memory.scheduler.waiting] == ["b", "c"]
    assert memory.scheduler.preemptions == 2
    memory.run()


def test_priority_goes_before_arrival_where_the_policy_says_so() -> None:
    orders = {}
    for policy in ("fcfs", "priority"):
        memory = SlotMemory(scheduler(max_sequences=1, policy=policy))
        for name, priority, arrival in (("a", 1, 0.0), ("b", 0, 2.0), ("c", 0, 1.0)):
            sequence = request(name, 2, first=ord(name), new=1, priority=priority, arrival=arrival)
            memory.scheduler.add(sequence)
        orders[policy] = "".join(name for step in memory.run() for name, _, _ in parts(step))
    assert orders == {"fcfs": "acb", "priority": "cba"}


def test_the_lowest_priority_is_preempted() -> None:
    memory = SlotMemory(scheduler(blocks=4, policy="priority"))
    for name, priority in (("low", 1), ("high", 0)):
        memory.scheduler.add(request(name, 8, first=50 * priority, new=6, priority=priority))
    preempted = [sequence.request_id for step in memory.run() for sequence in step.preempted]
    assert preempted == ["low"]


def test_one_that_does_not_fit_holds_up_those_behind_it() -> None:
    memory = SlotMemory(scheduler(blocks=6))
    for name, length in (("a", 16), ("b", 16), ("c", 2)):
        memory.scheduler.add(request(name, length, first=ord(name)))
    assert parts(memory.step()) == [("a", 0, 16)]
    memory.run()


def test_a_share_of_the_blocks_is_left_to_those_that_run() -> None:
    admitted = {}
    for watermark in (0.0, 0.25):
        memory = SlotMemory(scheduler(watermark=watermark))
        for name, length in (("a", 12), ("b", 16)):
            memory.scheduler.add(request(name, length, first=ord(name)))
        admitted[watermark] = len(memory.step().scheduled)
        memory.run()
    assert admitted == {0.0: 2, 0.25: 1}
    alone = SlotMemory(scheduler(watermark=0.25))
    alone.scheduler.add(request("a", 32, new=1))
    assert len(alone.run()) == 1


def test_nobody_is_admitted_into_what_a_preemption_has_just_freed() -> None:
    memory = SlotMemory(scheduler(blocks=8, policy="priority"))
    first, low, middle = (
        request(name, length, first=ord(name), new=8, priority=priority)
        for name, length, priority in (("a", 8, 0), ("b", 20, 2), ("c", 8, 1))
    )
    memory.scheduler.add(first)
    memory.scheduler.add(low)
    memory.step()
    memory.scheduler.add(middle)
    step = memory.step()
    assert (parts(step), step.preempted, middle.status) == ([("a", 8, 1)], [low], Status.WAITING)
    assert parts(memory.step()) == [("a", 9, 1), ("c", 0, 8)]
    memory.run()


def test_spare_blocks_are_given_away_where_nobody_else_gets_on() -> None:
    memory = SlotMemory(scheduler(blocks=8, watermark=0.25))
    idle, second = request("a", 12), request("b", 16, first=50)
    memory.scheduler.add(idle)
    memory.scheduler.advance(memory.scheduler.schedule())  # and its next token is not decided yet, like a beam's
    memory.scheduler.add(second)
    assert parts(memory.scheduler.schedule()) == [("b", 0, 16)]


# Case 07
def test_what_can_never_fit_is_refused_and_holds_up_nobody() -> None:
    memory = SlotMemory(scheduler(blocks=8))
    with pytest.raises(UserError, match=r"60 prompt tokens and 1 to be made .* 32 "):
        memory.scheduler.add(request("long", 60, new=None))
    with pytest.raises(UserError, match=r"120 prompt tokens and 20 to be made .* 128 "):
        memory.scheduler.add(request("longer", 120, new=20))
    assert not memory.scheduler.has_work
    memory.scheduler.add(request("short", 3))
    assert len(memory.run()) == 4


@pytest.mark.parametrize(("length", "new", "fits"), [(32, 1, True), (32, 2, False), (32, 0, True), (33, 0, False)])
def test_the_last_token_made_needs_no_slot(length: int, new: int, fits: bool) -> None:
    small = scheduler(blocks=8)
    assert small.max_length == 33
    if fits:
        small.add(request("a", length, new=new))
        assert parts(small.schedule()) == [("a", 0, 32)]
    else:
        with pytest.raises(UserError, match="32"):
            small.add(request("a", length, new=new))


def test_a_window_that_fits_bounds_no_length() -> None:
    memory = SlotMemory(scheduler(blocks=4, window=6, max_tokens_per_step=4))
    assert memory.scheduler.max_length == 128
    sequence = request("a", 60, new=40)
    memory.scheduler.add(sequence)
    memory.run()
    assert sequence.made == uncached(list(range(60)), 40)
    assert sequence.preemptions == 0


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(UserError, match="no token"):
        scheduler().add(request("a", 0))


def test_beams_that_never_fit_together_are_refused() -> None:
    memory = SlotMemory(scheduler(blocks=8, max_sequences=4))
    memory.scheduler.add(request("a", 12, new=5), together=2)
    with pytest.raises(UserError, match="16 that the KV cache"):
        memory.scheduler.add(request("a", 13, new=5), together=2)
    with pytest.raises(UserError, match="5 beams"):
        memory.scheduler.add(request("a", 1), together=5)


# Case 09
def test_a_preempted_sequence_that_finds_its_blocks_again_goes_on_as_if_nothing_was() -> None:
    made, starts = {}, {}
    for blocks in (6, 60):
        memory = SlotMemory(scheduler(blocks=blocks))
        first, second = request("a", 9, new=6), request("b", 9, first=50, new=12)
        for sequence in (first, second):
            memory.scheduler.add(sequence)
        starts[blocks] = [part.start for step in memory.run() for part in step.scheduled if part.sequence is second]
        made[blocks] = [first.made, second.made]
        assert (first.preemptions, second.preemptions) == (0, 1 if blocks == 6 else 0)
        assert second.cached == 0, "what it finds of its own is no gift of the cache"
    assert made[6] == made[60]
    assert starts[60] == [0, *range(9, 20)]
    assert starts[6] == [0, 9, 10, 11, 8, *range(13, 20)]


# Case 10
def test_a_long_sequence_is_not_admitted_by_the_chunk_again_and_again() -> None:
    memory = SlotMemory(scheduler(blocks=52, max_model_len=400, max_tokens_per_step=4, prefix_caching=False))
    sequences = [request("short", 4, new=200), request("long", 24, first=50, new=100)]
    for sequence in sequences:
        memory.scheduler.add(sequence)
    steps = memory.run()
    assert [sequence.preemptions for sequence in sequences] == [0, 1]
    assert len(steps) < 200 + 24 + 100


def test_forks_share_every_block_and_copy_the_last_when_they_write() -> None:
    memory = SlotMemory(scheduler(blocks=12))
    first = request("a", 10, new=6)
    memory.scheduler.add(first)
    memory.step()
    others = memory.scheduler.fork(first, 2)
    assert [other.choice for other in others] == [1, 2]
    assert memory.scheduler.pools[0].num_free == 9
    for number, other in enumerate(others):
        other.tokens[-1] = 100 + number
    step = memory.step()
    assert len(step.copies) == 2, "whoever writes last is alone in the block"
    assert len({sequence.block_tables[0][2] for sequence in (first, *others)}) == 3
    assert len({sequence.block_tables[0][1] for sequence in (first, *others)}) == 1
    memory.run()
    for number, other in enumerate(others):
        assert other.made == [100 + number, *uncached([*range(10), 100 + number], 5)]
    assert memory.scheduler.pools[0].num_free == 12


def test_forks_beyond_what_may_run_wait_and_find_the_prefix() -> None:
    memory = SlotMemory(scheduler(blocks=12, max_sequences=2))
    first = request("a", 10, new=3)
    memory.scheduler.add(first)
    memory.step()
    running, waiting = memory.scheduler.fork(first, 2)
    assert (running.status, waiting.status) == ("running", "waiting")
    steps = memory.run()
    assert next(part.start for step in steps for part in step.scheduled if part.sequence is waiting) == 8
    assert first.made == running.made == waiting.made


def test_a_sequence_without_a_next_token_yet_keeps_its_place() -> None:
    memory = SlotMemory(scheduler())
    sequence = request("a", 5)
    memory.scheduler.add(sequence)
    memory.scheduler.advance(memory.scheduler.schedule())
    assert parts(memory.scheduler.schedule()) == []
    sequence.tokens.append(1)
    assert parts(memory.scheduler.schedule()) == [("a", 5, 1)]


def test_abort_frees_everything_of_the_request_and_nothing_else() -> None:
    memory = SlotMemory(scheduler(blocks=12, max_sequences=3))
    first = request("a", 10)
    for sequence in (first, request("b", 5, first=50)):
        memory.scheduler.add(sequence)
    memory.step()
    memory.scheduler.fork(first, 2)
    assert sorted(sequence.choice for sequence in memory.scheduler.abort("a")) == [0, 1, 2]
    assert memory.scheduler.abort("a") == []
    check_invariants(memory.scheduler)
    assert memory.scheduler.pools[0].num_free == 10
    memory.run()


def test_a_request_aborted_while_its_step_is_computed_is_not_booked() -> None:
    small = scheduler()
    sequence = request("a", 5)
    small.add(sequence)
    step = small.schedule()
    small.abort("a")
    small.advance(step)
    assert (sequence.status, sequence.computed, small.pools[0].num_free) == (Status.FINISHED, 0, 8)


def test_what_is_in_use_is_measured_and_shared_blocks_count_once() -> None:
    memory = SlotMemory(scheduler(blocks=12))
    first = request("a", 10)
    memory.scheduler.add(first)
    memory.step()
    memory.scheduler.fork(first, 2)
    usage = memory.scheduler.usage()
    assert (usage.tokens, usage.slots) == (10, 12)


def test_paging_runs_more_at_once_than_a_contiguous_reservation_in_the_same_memory() -> None:
    running, used = {}, {}
    for block_size in (4, 128):  # a block as long as the longest sequence is a contiguous reservation
        memory = SlotMemory(Scheduler([BlockPool(512 // block_size, block_size)], 128))
        for number in range(40):
            memory.scheduler.add(request(str(number), 20, first=30 * number, new=12))
        memory.step()
        usage = memory.scheduler.usage()
        running[block_size], used[block_size] = len(memory.scheduler.running), usage.tokens / usage.slots
        memory.run()
    assert running == {4: 25, 128: 4}
    assert used[4] > 0.96 > 0.2 > used[128]
