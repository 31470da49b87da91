"""A model for the scheduler's tests, without numbers: a slot holds which text the token in it belongs to and ends.

Whatever it reads through a block table must be what the uncached text would have put there, so that a block that was
handed out twice, written while shared, found for another text or given back too early is seen at once.
"""

from itertools import accumulate
from zlib import crc32

from intaglio.engine.blocks import BlockPool
from intaglio.engine.scheduler import Scheduled, Scheduler, Step
from intaglio.engine.sequence import Sequence

VOCABULARY = 3  # few, so that texts meet again


def texts(salt: bytes, tokens: list[int]) -> list[int]:
    """A number for the text that ends with each token."""
    beginning = crc32(salt)
    return list(accumulate(tokens, lambda before, token: crc32(token.to_bytes(2), before), initial=beginning))[1:]


def following(salt: bytes, tokens: list[int]) -> int:
    """The token that a text goes on with."""
    return texts(salt, tokens)[-1] % VOCABULARY


def uncached(prompt: list[int], count: int, salt: bytes = b"") -> list[int]:
    """The tokens that a text goes on with."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(following(salt, tokens))
    return tokens[len(prompt) :]


class SlotMemory:
    """Runs the steps of a scheduler; a sequence ends with its last token."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.slots: list[list[int | None]] = [[None] * (pool.num_blocks * pool.block_size) for pool in scheduler.pools]

    def step(self) -> Step:
        """One step, after which every sequence that sampled has its next token, or has ended."""
        step = self.scheduler.schedule()
        self.compute(step)
        self.scheduler.advance(step)
        for part in step.scheduled:
            if part.samples:
                self.sample(part.sequence)
        return step

    def run(self, most: int = 10_000) -> list[Step]:
        """Steps until all sequences have ended."""
        steps = []
        while self.scheduler.has_work:
            steps.append(self.step())
            assert len(steps) <= most, "no end"
        return steps

    def sample(self, sequence: Sequence) -> None:
        """Appends the next token; ends the sequence with its last."""
        sequence.tokens.append(following(sequence.salt, sequence.tokens))
        most = self.scheduler.max_length - sequence.num_prompt_tokens
        if len(sequence.made) == min(most, sequence.max_tokens or most):
            self.scheduler.finish(sequence)

    def compute(self, step: Step) -> None:
        """Makes the copies, writes every slot, then reads all that the tokens of the step see."""
        for group, pool in enumerate(self.scheduler.pools):
            size, slots = pool.block_size, self.slots[group]
            copies = [copy for copy in step.copies if copy.group == group]
            read = [slots[copy.source * size : (copy.source + 1) * size] for copy in copies]
            for copy, content in zip(copies, read, strict=True):
                slots[copy.target * size : (copy.target + 1) * size] = content
            for part in step.scheduled:
                self._write(slots, pool, part, part.sequence.block_tables[group])
            for part in step.scheduled:
                self._check(slots, pool, part, part.sequence.block_tables[group])

    def _write(self, slots: list[int | None], pool: BlockPool, part: Scheduled, table: list[int]) -> None:
        true = texts(part.sequence.salt, part.sequence.tokens)
        for place in range(part.start, part.start + part.count):
            slots[_slot(pool, table, place)] = true[place]

    def _check(self, slots: list[int | None], pool: BlockPool, part: Scheduled, table: list[int]) -> None:
        true = texts(part.sequence.salt, part.sequence.tokens)
        first = 0 if pool.window is None else max(0, part.start - pool.window + 1)
        for place in range(first, part.start + part.count):
            assert slots[_slot(pool, table, place)] == true[place], f"token {place} sees another text"


def _slot(pool: BlockPool, table: list[int], place: int) -> int:
    block = table[place // pool.block_size]
    assert block >= 0, f"token {place} is in a block that was given back"
    return block * pool.block_size + place % pool.block_size


def check_invariants(scheduler: Scheduler) -> None:
    """No block owned by whom no table names, none lost, none wasted; between two steps."""
    for group, pool in enumerate(scheduler.pools):
        tables = [sequence.block_tables[group] for sequence in scheduler.running]
        named = [block for table in tables for block in table if block >= 0]
        assert [pool.references(block) for block in range(pool.num_blocks)] == [
            named.count(block) for block in range(pool.num_blocks)
        ]
        assert pool.num_free == pool.num_blocks - len(set(named))
        for sequence, table in zip(scheduler.running, tables, strict=True):
            assert 0 <= len(table) * pool.block_size - sequence.computed < pool.block_size
            gone = pool.behind(sequence.computed)
            assert [block < 0 for block in table] == [place < gone for place in range(len(table))]
    assert not any(any(sequence.block_tables) for sequence in scheduler.waiting)
    assert len(scheduler.running) <= scheduler.max_sequences
