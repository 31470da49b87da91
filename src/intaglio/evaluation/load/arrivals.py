"""When requests are sent: so many at once, or at moments that no answer can put off.

A closed loop keeps so many conversations running: it shows what a server can do, and a slow server is sent less. An
open loop sends at a rate however long the answers take, as independent users do; it shows how long they have to wait.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

from intaglio.errors import UserError
from intaglio.evaluation.load.clock import now
from intaglio.evaluation.load.conversations import Conversation
from intaglio.evaluation.load.latency import Sample

__all__ = [
    "Bursty",
    "ClosedLoop",
    "Constant",
    "Hold",
    "Level",
    "Moments",
    "OpenLoop",
    "Poisson",
    "Ramp",
    "parse_moments",
]

_GONE = ("cannot connect", "connection lost")
_PAUSE = 0.25  # seconds before the next try of a server that is gone: else a level fills with failures

Hold = Callable[[Conversation, float | None], Awaitable[list[Sample]]]
"""Holds a conversation that is due then."""


class Moments(Protocol):
    """At which moments an open loop sends."""

    @property
    def name(self) -> str:
        """As the user says it."""

    def offsets(self, rate: float, seconds: float, dice: random.Random) -> Iterator[float]:
        """Seconds from the start, without end.

        Args:
            rate: requests a second.
            seconds: which the level will take.
            dice: chance.
        """


@dataclass(frozen=True)
class Poisson:
    """Whenever it happens: the time to the next request does not depend on the last one."""

    name: str = "poisson"

    def offsets(self, rate: float, seconds: float, dice: random.Random) -> Iterator[float]:
        """See `Moments`."""
        moment = 0.0
        while True:
            moment += dice.expovariate(rate)
            yield moment


@dataclass(frozen=True)
class Constant:
    """One after the other, at equal distances."""

    name: str = "constant"

    def offsets(self, rate: float, seconds: float, dice: random.Random) -> Iterator[float]:
        """See `Moments`."""
        number = 0
        while True:
            yield number / rate
            number += 1


@dataclass(frozen=True)
class Bursty:
    """Gamma-distributed distances: in crowds below a factor of 1, at 1 as Poisson, above it more evenly.

    Attributes:
        factor: the shape of the distribution; the squared variation of the distances is one over it.
    """

    factor: float

    @property
    def name(self) -> str:
        """See `Moments`."""
        return f"bursty:{self.factor:g}"

    def offsets(self, rate: float, seconds: float, dice: random.Random) -> Iterator[float]:
        """See `Moments`."""
        moment = 0.0
        while True:
            moment += dice.gammavariate(self.factor, 1 / (rate * self.factor))
            yield moment


@dataclass(frozen=True)
class Ramp:
    """Poisson at a rate that rises, or falls, in a line over the level, and then stays.

    Unit exponentials are steps of the integral of the rate, which is turned around (Çinlar's method of inversion).

    Attributes:
        first: requests a second at the start; the level's rate is the last.
    """

    first: float

    @property
    def name(self) -> str:
        """See `Moments`."""
        return f"ramp:{self.first:g}"

    def offsets(self, rate: float, seconds: float, dice: random.Random) -> Iterator[float]:
        """See `Moments`."""
        slope = (rate - self.first) / seconds
        whole = (self.first + rate) / 2 * seconds
        expected = 0.0
        while True:
            expected += dice.expovariate(1.0)
            if expected >= whole:
                yield seconds + (expected - whole) / rate
            elif slope == 0:
                yield expected / rate
            else:
                yield ((self.first**2 + 2 * slope * expected) ** 0.5 - self.first) / slope


def parse_moments(text: str, where: str = "") -> Moments:
    """Reads `poisson`, `constant`, `bursty:0.25` or `ramp:0.5`.

    Raises:
        UserError: it is none of these; names `where`.
    """
    kind, _, value = text.partition(":")
    try:
        number = float(value) if value else 0.0
        made: dict[str, Moments] = {"poisson": Poisson(), "constant": Constant()}
        made |= {"bursty": Bursty(number), "ramp": Ramp(number)} if number > 0 else {}
        if bool(value) is (kind in ("poisson", "constant")):
            raise ValueError
        return made[kind]
    except (ValueError, KeyError) as error:
        mend = "poisson, constant, bursty:0.25 or ramp:0.5"
        raise UserError(f"{text!r} is no way to arrive", where=where, mend=mend) from error


@dataclass(frozen=True)
class ClosedLoop:
    """So many conversations at once: the next one begins when one is over."""

    concurrency: int

    kind = "concurrency"

    @property
    def load(self) -> float:
        """The number by which levels are compared."""
        return self.concurrency

    def count(self) -> int:
        """Conversations where nobody says how many: four rounds."""
        return max(8, 4 * self.concurrency)

    async def run(self, hold: Hold, conversations: Iterable[Conversation], until: float = float("inf")) -> list[Sample]:
        """Holds them all, but begins none after `until`; those that run then go on to their end."""
        left = iter(conversations)

        async def one_after_another() -> list[Sample]:
            samples = []
            for conversation in takewhile(lambda _: now() < until, left):
                samples += await hold(conversation, None)
                if samples[-1].error in _GONE:
                    await asyncio.sleep(_PAUSE)
            return samples

        lanes = await asyncio.gather(*(one_after_another() for _ in range(self.concurrency)))
        return [sample for lane in lanes for sample in lane]


@dataclass(frozen=True)
class OpenLoop:
    """Conversations begin at moments of their own, whatever still runs.

    Attributes:
        rate: how many a second.
        moments: when.
        seed: of the moments.
    """

    rate: float
    moments: Moments = field(default_factory=Poisson)
    seed: int = 0

    kind = "rate"

    @property
    def load(self) -> float:
        """The number by which levels are compared."""
        return self.rate

    def count(self) -> int:
        """Conversations where nobody says how many: half a minute."""
        return max(8, round(30 * self.rate))

    async def run(
        self,
        hold: Hold,
        conversations: Iterable[Conversation],
        until: float = float("inf"),
        seconds: float = 30.0,
    ) -> list[Sample]:
        """Holds them all, but begins none after `until`; `seconds` is how long the level should take."""
        begin, running = now(), []
        offsets = self.moments.offsets(self.rate, seconds, random.Random(self.seed))
        for conversation, offset in zip(conversations, offsets, strict=False):
            due = begin + offset
            if due >= until:
                break
            await asyncio.sleep(due - now())
            running.append(asyncio.ensure_future(hold(conversation, due)))
        return [sample for samples in await asyncio.gather(*running) for sample in samples]


Level = ClosedLoop | OpenLoop
