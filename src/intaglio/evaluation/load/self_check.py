"""Whether the load generator itself was the bottleneck: then what it measured is itself, not the server.

A piece of an answer gets its time when the event loop comes to it. So the loop's lag is added to every time; the share
of a core that the process took says how near that is; and in an open loop, requests that go out late were not the load
that was asked for.
"""

import asyncio
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from intaglio.errors import UserError
from intaglio.evaluation.load.clock import now

__all__ = ["Watch", "most_connections", "room_for", "watching"]

_TICK = 1 / 64  # seconds
_LAG, _SHARE, _LATE = 0.01, 0.8, 0.05
_LITTLE = 0.05
_SPARE = 64  # files that are open besides connections


@dataclass
class Watch:
    """What the generator took itself.

    Attributes:
        lags: seconds by which the loop was late for a tick.
        cpu_share: of one core, by the whole process.
    """

    lags: list[float] = field(default_factory=list)
    cpu_share: float = 0.0

    def found(self) -> dict[str, Any]:
        """For a report."""
        lag = np.percentile(self.lags, 99).item() if self.lags else 0.0
        return {"loop_lag_p99_s": lag, "loop_lag_max_s": max(self.lags, default=0.0), "cpu_share": self.cpu_share}

    def warnings(self, lateness: float | None, token: float | None) -> Iterator[str]:
        """What the user has to know.

        Args:
            lateness: of an open loop, the 99th percentile in seconds.
            token: the median time per token: a lag that is little beside it does no harm.
        """
        found = self.found()
        if found["loop_lag_p99_s"] > max(_LAG, _LITTLE * (token or 0.0)):
            lag = 1000 * found["loop_lag_p99_s"]
            yield f"the load generator itself was late by {lag:.0f} ms (p99): times are too long by as much"
        if found["cpu_share"] > _SHARE:
            yield f"the load generator took {found['cpu_share']:.0%} of a core: spread the load over several processes"
        if lateness is not None and lateness > _LATE:
            yield f"requests went out {1000 * lateness:.0f} ms too late (p99): the rate was not the one asked for"


@contextmanager
def watching() -> Iterator[Watch]:
    """Watches the running loop and this process until the block is left."""
    watch = Watch()
    ticking = asyncio.ensure_future(_tick(watch))
    begin, worked = now(), time.process_time()
    try:
        yield watch
    finally:
        ticking.cancel()
        passed = now() - begin
        watch.cpu_share = (time.process_time() - worked) / passed if passed > 0 else 0.0


async def _tick(watch: Watch) -> None:
    while True:
        due = now() + _TICK
        await asyncio.sleep(_TICK)
        watch.lags.append(max(0.0, now() - due))


def most_connections() -> int:
    """How many the system lets this process open at all."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return (1_000_000 if hard == resource.RLIM_INFINITY else hard) - _SPARE


def room_for(connections: int) -> None:
    """Lets this process open so many connections at once, where the system's soft limit is below.

    Raises:
        UserError: the hard limit is below too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        return
    if connections > most_connections():
        what = f"{connections} requests at once need more open files than the {hard} that are allowed"
        raise UserError(what, mend="raise `ulimit -n`, or ask for fewer")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
