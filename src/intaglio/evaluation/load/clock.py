"""The one clock of a load test: that of the event loop, so that a loop with a time of its own makes every figure exact.

On Linux, macOS and Windows it is monotonic; all times of a sample are seconds of it.
"""

import asyncio

__all__ = ["now"]


def now() -> float:
    """Seconds of the running loop's clock."""
    return asyncio.get_running_loop().time()
