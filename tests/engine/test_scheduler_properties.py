"""The scheduler under any interleaving: no block owned twice or lost, every text as if uncached, nobody starves."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from intaglio.engine.blocks import BlockPool
from intaglio.engine.scheduler import Scheduler
from intaglio.engine.sequence import Sequence, Status
from slot_memory import VOCABULARY, SlotMemory, check_invariants, uncached

PROMPTS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=16)
NUMBERS = st.integers(0, 19)


@st.composite
def schedulers(draw: st.DrawFn) -> Scheduler:
    """Small ones, so that blocks run out; any one request fits."""
    block_size = draw(st.integers(1, 4))
    windows = draw(st.sampled_from([(None,), (None, 5), (3,), (3, 9)]))
    blocks = st.integers(-(-28 // block_size), 40 // block_size)
    return Scheduler(
        [BlockPool(draw(blocks), block_size, window) for window in windows],
        max_model_len=draw(st.integers(28, 40)),
        max_tokens_per_step=draw(st.integers(1, 12)),
        max_sequences=draw(st.integers(1, 8)),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        prefix_caching=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.1])),
    )


class AnyInterleaving(RuleBasedStateMachine):
    """Requests come, fork, go back and are given up between steps; the memory compares whatever is read."""

    @initialize(scheduler=schedulers())
    def start(self, scheduler: Scheduler) -> None:
        self.scheduler, self.memory, self.requests = scheduler, SlotMemory(scheduler), 0

    def chosen(self, number: int) -> list[Sequence]:
        """One of the sequences that have not ended, if there is one."""
        live = [*self.scheduler.running, *self.scheduler.waiting]
        return [live[number % len(live)]] if live else []

    @rule(
        prompt=PROMPTS,
        new=st.integers(1, 12),
        priority=st.integers(0, 2),
        salt=st.sampled_from([b"", b"salt"]),
        reads_cache=st.booleans(),
    )
    def add(self, prompt: list[int], new: int, priority: int, salt: bytes, reads_cache: bool) -> None:
        self.requests += 1
        name = str(self.requests)
        self.scheduler.add(
            Sequence(name, prompt, max_tokens=new, priority=priority, salt=salt, reads_cache=reads_cache)
        )

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            first = min([*self.scheduler.running, *self.scheduler.waiting], key=self.scheduler._rank, default=None)
            begun = first is not None and first.status is Status.RUNNING
            step = self.memory.step()
            assert sum(part.count for part in step.scheduled) <= self.scheduler.max_tokens_per_step
            assert bool(step.scheduled) == (first is not None)
            assert not begun or first in [part.sequence for part in step.scheduled], "the first gets on in every step"

    @rule(number=NUMBERS)
    def fork(self, number: int) -> None:
        for sequence in self.chosen(number):
            (other,) = self.scheduler.fork(sequence)
            if other.remaining:
                other.tokens[-1] = (other.tokens[-1] + 1) % VOCABULARY

    @rule(number=NUMBERS, share=st.floats(0, 1), changed=st.integers(0, VOCABULARY - 1))
    def rewind(self, number: int, share: float, changed: int) -> None:
        for sequence in self.chosen(number):
            self.scheduler.rewind(sequence, int(share * (len(sequence.tokens) - 1)))
            sequence.tokens.append(changed)
            sequence.num_prompt_tokens = len(sequence.tokens)

    @rule(number=NUMBERS)
    def abort(self, number: int) -> None:
        for sequence in self.chosen(number):
            self.scheduler.abort(sequence.request_id)

    @invariant()
    def sound(self) -> None:
        if hasattr(self, "scheduler"):
            check_invariants(self.scheduler)

    def teardown(self) -> None:
        if hasattr(self, "scheduler"):
            self.memory.run()
            assert all(pool.num_free == pool.num_blocks for pool in self.scheduler.pools)


PATIENT = [HealthCheck.too_slow]  # a busy machine is no finding
AnyInterleaving.TestCase.settings = settings(max_examples=50, stateful_step_count=30, suppress_health_check=PATIENT)
TestAnyInterleaving = AnyInterleaving.TestCase


@settings(max_examples=30, suppress_health_check=PATIENT)
@given(schedulers(), st.lists(st.tuples(PROMPTS, st.integers(1, 12)), min_size=1, max_size=8))
def test_every_text_is_the_uncached_one_and_nobody_starves(
    scheduler: Scheduler, requests: list[tuple[list[int], int]]
) -> None:
    memory, sequences = SlotMemory(scheduler), []
    for number, (prompt, new) in enumerate(requests):
        sequences.append(Sequence(str(number), list(prompt), max_tokens=new, priority=number % 2))
        scheduler.add(sequences[-1])
    steps = memory.run()
    assert all(sequence.made == uncached(sequence.prompt, len(sequence.made)) for sequence in sequences)
    assert all(len(sequence.made) == sequence.max_tokens for sequence in sequences)
    assert all(sequence.preemptions <= len(sequences) for sequence in sequences)
    assert len(steps) <= sum(len(sequence.tokens) * (1 + sequence.preemptions) for sequence in sequences)
