"""Who computes how many tokens in the next step, and in which blocks.

There are no phases: a sequence knows more tokens than the cache holds, and each step hands out a budget of tokens until
it has caught up (Agrawal et al. 2023, arXiv 2308.16369, for prompts in chunks). Running sequences come first, then
waiting ones are admitted in order. When blocks run out, the running sequence that is last in the order loses its own
and waits again, to be recomputed from the tokens it has, or from those of its blocks that nobody took meanwhile.

The order is total: by priority where the policy says so, then by arrival. Who is preempted is always behind whoever
needed its blocks, so the first in the order always gets on, and nobody waits for ever.

    step = scheduler.schedule()
    ...                             # make the step's copies, then compute its tokens
    scheduler.advance(step)
    ...                             # append a token to every sequence that samples, and finish those that end
"""

from bisect import insort
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Literal

from intaglio.engine.blocks import GONE, BlockPool, Copy
from intaglio.engine.prefix_cache import find_prefix, publish
from intaglio.engine.sequence import Sequence, Status
from intaglio.errors import UserError

__all__ = ["Policy", "Scheduled", "Scheduler", "Step", "Usage"]

Policy = Literal["fcfs", "priority"]
"""`fcfs`: first come, first served; `priority`: the lowest `Sequence.priority` first, then as they came."""


@dataclass(frozen=True)
class Scheduled:
    """Tokens `start`..`start + count - 1` of `sequence` are computed; `samples`: the last of them has no successor."""

    sequence: Sequence
    start: int
    count: int
    samples: bool


@dataclass
class Step:
    """What is computed together.

    Attributes:
        scheduled: never two parts of one sequence; empty when there is nothing to do.
        copies: made before anything is computed; all sources may be read before any target is written.
        preempted: sequences that lost their blocks.
        budget: tokens that were left over.
    """

    budget: int
    scheduled: list[Scheduled] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)


@dataclass(frozen=True)
class Usage:
    """Slots in blocks that sequences hold, and how many of them hold a token."""

    tokens: int
    slots: int


class Scheduler:
    """Moves sequences between waiting, running and finished, and owns their block tables.

    Args:
        pools: one for each group of layers with the same window, of one block size.
        max_model_len: tokens of one sequence at most, for the model's sake.
        max_tokens_per_step: the budget.
        max_sequences: running at once, at most.
        policy: see `Policy`.
        prefix_caching: whether prefixes that the cache holds are found.
        watermark: share of each pool that admission leaves free, so that those admitted can grow a while.

    Attributes:
        running, waiting: each in order.
        max_length: tokens of one sequence at most, for the model's and for the cache's sake.
        preemptions: so far.
        prefix_queries, prefix_hits: prompt tokens that were looked up in the prefix cache, and those found.
    """

    def __init__(
        self,
        pools: Many[BlockPool],
        max_model_len: int,
        *,
        max_tokens_per_step: int = 512,
        max_sequences: int = 256,
        policy: Policy = "fcfs",
        prefix_caching: bool = True,
        watermark: float = 0.01,
    ) -> None:
        assert len({pool.block_size for pool in pools}) == 1, "one block size for all groups"
        self.pools, self.max_model_len = list(pools), max_model_len
        self.max_tokens_per_step, self.max_sequences, self.policy = max_tokens_per_step, max_sequences, policy
        self.prefix_caching, self.watermark = prefix_caching, watermark
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.preemptions = self.prefix_queries = self.prefix_hits = 0
        self.max_length = min(max_model_len, self._capacity(together=1) + 1)  # the last token made is never written

    @property
    def has_work(self) -> bool:
        """Whether any sequence waits or runs."""
        return bool(self.waiting or self.running)

    def add(self, sequence: Sequence, together: int = 1) -> None:
        """Lets a new sequence wait.

        Args:
            sequence: new.
            together: as many forks of it as will have to be in the cache at the same time: the beams of a search.

        Raises:
            UserError: it could never be computed; says how much it needs and how much there is.
        """
        self._check(sequence, together)
        self._wait(sequence)

    def schedule(self) -> Step:
        """Decides the next step and makes slots for its tokens."""
        step = Step(self.max_tokens_per_step)
        for sequence in list(self.running):
            count = min(sequence.remaining, step.budget)
            if count and sequence.status is Status.RUNNING and self._make_room(sequence, count, step):
                self._take(sequence, count, step)
        if not step.preempted:
            self._admit(step)
        return step

    def advance(self, step: Step) -> None:
        """Books the tokens of a step that was computed: full blocks can be found, those behind a window are free."""
        for part in step.scheduled:
            sequence = part.sequence
            if sequence.status is Status.RUNNING:  # not if it was aborted meanwhile
                sequence.computed += part.count
                if self.prefix_caching:
                    publish(self.pools, sequence, part.start)
                for pool, table in self._tables(sequence):
                    pool.give_back(table, sequence.computed)

    def finish(self, sequence: Sequence) -> None:
        """Ends a sequence, whatever it was doing; its blocks are free, and found as long as nobody takes them."""
        if sequence.status is not Status.FINISHED:
            (self.running if sequence.status is Status.RUNNING else self.waiting).remove(sequence)
            self._release(sequence)
            sequence.status = Status.FINISHED

    def abort(self, request_id: str) -> list[Sequence]:
        """Finishes all sequences of a request, and returns them; none where it has ended or never was."""
        found = [sequence for sequence in [*self.running, *self.waiting] if sequence.request_id == request_id]
        for sequence in found:
            self.finish(sequence)
        return found

    def fork(self, sequence: Sequence, n: int = 1) -> list[Sequence]:
        """`n` further choices that begin as `sequence` is now, between two steps.

        They share its blocks, and each gets a copy of the last one when it writes to it. Where more would run than may,
        they wait like preempted ones.
        """
        forks = [sequence.twin(sequence.choice + 1 + number) for number in range(n)]
        for fork in forks:
            if sequence.status is Status.RUNNING and len(self.running) < self.max_sequences:
                self._share(fork, sequence.block_tables, sequence.computed)
                self._run(fork)
            else:
                self._wait(fork)
        return forks

    def rewind(self, sequence: Sequence, length: int) -> None:
        """Forgets all but the first `length` tokens of a sequence between two steps; append those that follow instead.

        Blocks after the change are given back, and the sequence's keys of them dropped. What others can find is left
        alone until it is written over. Where blocks behind a window are needed again, it waits to be recomputed.
        """
        del sequence.tokens[length:]
        del sequence.keys[length // self.pools[0].block_size :]
        sequence.computed = min(sequence.computed, length)
        sequence.num_prompt_tokens = min(sequence.num_prompt_tokens, length)
        for pool, table in self._tables(sequence):
            pool.cut(table, sequence.computed)
        if any(GONE in table[pool.behind(sequence.computed) :] for pool, table in self._tables(sequence)):
            self._stop(sequence)

    def usage(self) -> Usage:
        """How much of what was handed out is in use, between two steps; a shared block counts once."""
        slots = sum((pool.num_blocks - pool.num_free) * pool.block_size for pool in self.pools)
        ends = {
            (group, table[-1]): len(table) * pool.block_size - sequence.computed
            for sequence in self.running
            for group, (pool, table) in enumerate(self._tables(sequence))
            if table
        }
        return Usage(slots - sum(ends.values()), slots)

    def forget_prefixes(self) -> None:
        """Empties the prefix cache, for the weights have changed; between requests."""
        assert not self.running, "what runs would mix old keys and values with new ones"
        for pool in self.pools:
            for block in range(pool.num_blocks):
                pool.forget(block)

    # What can never fit

    def _capacity(self, together: int) -> int:
        """Tokens of one sequence that the cache can hold, if it holds so many sequences."""
        return min(self._slots(pool, pool.num_blocks // together) for pool in self.pools)

    def _slots(self, pool: BlockPool, num_blocks: int) -> int:
        """Tokens of one sequence that `num_blocks` hold; where window and chunk fit, they hold any number."""
        fits = pool.peak(self.max_model_len, self.max_tokens_per_step) <= num_blocks
        return self.max_model_len if fits else num_blocks * pool.block_size

    def _check(self, sequence: Sequence, together: int) -> None:
        prompt = sequence.num_prompt_tokens
        new = 1 if sequence.max_tokens is None else sequence.max_tokens
        asked, capacity = f"{prompt} prompt tokens and {new} to be made", self._capacity(together)
        mend = "shorten the prompt or make fewer"
        if not prompt:
            raise UserError("the prompt has no token")
        if together > self.max_sequences:
            raise UserError(f"{together} beams are more than the {self.max_sequences} sequences that may run at once")
        if prompt + new > self.max_model_len:
            raise UserError(f"{asked} are more than the {self.max_model_len} that one sequence may have", mend=mend)
        if prompt + max(new, 1) - 1 > capacity:  # the last token made is never written
            raise UserError(f"{asked} are more than the {capacity} that the KV cache can hold", mend=mend)

    # Running sequences

    def _make_room(self, sequence: Sequence, count: int, step: Step) -> bool:
        """Preempts until there are blocks for `count` more tokens; False where `sequence` is the last in the order."""
        while not self._fits(sequence, count):
            victim = self.running[-1]
            self._stop(victim)
            victim.preemptions += 1
            self.preemptions += 1
            step.preempted.append(victim)
            if victim is sequence:
                return False
        return True

    def _fits(self, sequence: Sequence, count: int) -> bool:
        start = sequence.computed
        pairs = self._tables(sequence)
        return all(pool.missing(table, start, start + count) <= pool.num_free for pool, table in pairs)

    def _take(self, sequence: Sequence, count: int, step: Step) -> None:
        """Puts `count` tokens of `sequence` into the step; there is room for them."""
        start = sequence.computed
        for group, (pool, table) in enumerate(self._tables(sequence)):
            copy = pool.grow(table, start, start + count)
            if copy:
                step.copies.append(Copy(group, *copy))
        step.budget -= count
        step.scheduled.append(Scheduled(sequence, start, count, samples=count == sequence.remaining))

    # Waiting sequences

    def _admit(self, step: Step) -> None:
        """Lets waiting sequences run, in order; one that does not fit holds up those after it."""
        while self.waiting and step.budget and len(self.running) < self.max_sequences:
            sequence = self.waiting[0]
            tables = self._find(sequence)
            if not all(self._has_room(sequence, group, table, step) for group, table in enumerate(tables)):
                break
            del self.waiting[0]
            self._share(sequence, tables, len(tables[0]) * self.pools[0].block_size)
            self._count_hits(sequence)
            self._run(sequence)
            self._take(sequence, min(sequence.remaining, step.budget), step)

    def _find(self, sequence: Sequence) -> list[list[int]]:
        """The block tables that `sequence` may begin with."""
        if self.prefix_caching and sequence.reads_cache:
            return find_prefix(self.pools, sequence)
        return [[] for _ in self.pools]

    def _has_room(self, sequence: Sequence, group: int, table: Many[int], step: Step) -> bool:
        """Whether all of `sequence` fits, not just a first chunk: it would be admitted and preempted again and again.

        Those that run want no more, or there would be no budget left. Where none of them gets on, spare blocks serve
        nobody.
        """
        pool, length = self.pools[group], len(sequence.tokens)
        found = [block for block in table if block != GONE]
        idle = sum(pool.references(block) == 0 for block in found)
        chunk = min(length - len(table) * pool.block_size, self.max_tokens_per_step)
        spare = int(self.watermark * pool.num_blocks) if step.scheduled else 0
        return idle + max(0, pool.peak(length, chunk) - len(found)) + spare <= pool.num_free

    def _count_hits(self, sequence: Sequence) -> None:
        """Books what the cache spared a new sequence; one that comes back finds mostly its own."""
        looked = self.prefix_caching and sequence.reads_cache
        if looked and not sequence.preemptions and len(sequence.tokens) == sequence.num_prompt_tokens:
            sequence.cached = sequence.computed
            self.prefix_queries += sequence.num_prompt_tokens
            self.prefix_hits += sequence.cached

    # From one state to another

    def _rank(self, sequence: Sequence) -> tuple[int, float, int]:
        """The order: the lowest goes first."""
        return sequence.priority if self.policy == "priority" else 0, sequence.arrival, sequence.id

    def _wait(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        sequence.block_tables = [[] for _ in self.pools]
        insort(self.waiting, sequence, key=self._rank)

    def _run(self, sequence: Sequence) -> None:
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=self._rank)

    def _stop(self, sequence: Sequence) -> None:
        """Takes everything from a running sequence; it waits to be recomputed."""
        self.running.remove(sequence)
        self._release(sequence)
        self._wait(sequence)

    def _tables(self, sequence: Sequence) -> list[tuple[BlockPool, list[int]]]:
        return list(zip(self.pools, sequence.block_tables, strict=True))

    def _share(self, sequence: Sequence, tables: Many[list[int]], computed: int) -> None:
        """Lets `sequence` begin with `computed` tokens in blocks that are there."""
        for pool, table in zip(self.pools, tables, strict=True):
            for block in table:
                if block != GONE:
                    pool.share(block)
        sequence.block_tables = [list(table) for table in tables]
        sequence.computed = computed

    def _release(self, sequence: Sequence) -> None:
        for pool, table in self._tables(sequence):
            pool.cut(table, 0)
        sequence.computed = 0
