"""Whether others wanted this machine's cores while something was timed, and what is to be said then."""

import os
from typing import Final

from intaglio.atlas.figure import Words

__all__ = ["busy", "load"]

_BUSY: Final = 0.5
"""Other programs that want a core, for each core."""


def load() -> float:
    """Programs but this one that ran or waited for a core during the last minute, for each core."""
    return max(0.0, os.getloadavg()[0] - 1) / (os.cpu_count() or 1)


def busy(load: float) -> Words:
    """A sentence for a caption; empty where the machine was idle."""
    if load < _BUSY:
        return Words("", "")
    return Words(
        f" The machine was busy when this was measured (a load of {load:.1f} a core), so times are too long.",
        f"测量时机器正忙（每核负载 {load:.1f}），所以时间偏长。",
    )
