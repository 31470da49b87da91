"""One text while it is made: its tokens, how many of them the cache holds, and in which blocks."""

from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any

from intaglio.engine.blocks import BlockKey

__all__ = ["Sequence", "Status"]

_numbers = count()


class Status(StrEnum):
    """Where a sequence is; a preempted one waits again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Sequence:
    """One choice of one request. The scheduler moves it; whoever samples appends to its tokens, and nothing else.

    Attributes:
        request_id: whose it is; several choices share one.
        tokens: the prompt, then what was made.
        params: how its tokens are chosen; the scheduler does not look.
        max_tokens: tokens that will be made at most; None for as many as fit, 0 for none (an embedding, a score).
        choice: its number among the choices of its request.
        priority: the lowest goes first, where the policy is `priority`.
        arrival: when the request came; the earliest goes first.
        salt: what the K/V depend on besides the tokens, such as the adapter: no other salt shares its blocks.
        reads_cache: whether it may start after a prefix that is in the cache already.
        most_cached: tokens of such a prefix at most; None: all but the last. Where an output of prompt tokens is wanted
            (their log-probabilities), those must be computed.
        id: unlike any other's in the process, and growing.
        num_prompt_tokens: how many of `tokens` are the prompt.
        status: see `Status`.
        computed: tokens whose keys and values are in the cache.
        cached: how many of them it found there when it was first admitted.
        preemptions: how often it lost its blocks and began anew.
        block_tables: for each group of layers, the block that holds tokens i * block_size and following, at place i;
            GONE where that lies behind the group's window. Between steps there are just as many as `computed` fills.
        keys: of its full blocks, as far as they were needed.
    """

    request_id: str
    tokens: list[int]
    params: Any = None
    max_tokens: int | None = None
    choice: int = 0
    priority: int = 0
    arrival: float = 0.0
    salt: bytes = b""
    reads_cache: bool = True
    most_cached: int | None = None
    id: int = field(default_factory=_numbers.__next__)
    num_prompt_tokens: int = field(init=False)
    status: Status = Status.WAITING
    computed: int = 0
    cached: int = 0
    preemptions: int = 0
    block_tables: list[list[int]] = field(default_factory=list)
    keys: list[BlockKey] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.tokens)

    @property
    def prompt(self) -> list[int]:
        """The tokens it began with."""
        return self.tokens[: self.num_prompt_tokens]

    @property
    def made(self) -> list[int]:
        """The tokens made so far."""
        return self.tokens[self.num_prompt_tokens :]

    @property
    def remaining(self) -> int:
        """Tokens that are known but not in the cache; 0 while it waits for its next token."""
        return len(self.tokens) - self.computed

    def twin(self, choice: int) -> "Sequence":
        """A further choice with the same tokens, that waits and has no blocks yet."""
        other = copy(self)
        other.id, other.choice, other.status = next(_numbers), choice, Status.WAITING
        other.tokens, other.keys, other.block_tables = [*self.tokens], [*self.keys], []
        other.computed = other.preemptions = 0
        return other
