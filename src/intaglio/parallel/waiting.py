"""Who keeps the others waiting: a collective that gave up says that time is over, not which rank did not come."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from intaglio.errors import UserError

__all__ = ["Roll"]

_GAVE_UP: Final = re.compile(r"timed? ?out", re.IGNORECASE)
_GONE: Final = re.compile(r"connection (closed|reset)", re.IGNORECASE)
_SOON: Final = 3.0  # seconds in which all that are left have noticed that one is gone
_PAUSE: Final = 0.1


class Roll:
    """Calls the roll after a collective has given up: ranks that still run note themselves where all can read.

    Args:
        patience: seconds that the others have to come, once one has given up. They gave up at about the same time.
    """

    def __init__(self, patience: float = 30) -> None:
        self._patience = patience
        self._present = PrefixStore("roll", _get_default_store())

    @contextmanager
    def named(self, what: str) -> Iterator[None]:
        """Runs a block of collectives.

        Args:
            what: what is waited for, such as `step 12`.

        Raises:
            UserError: a rank did not come: it hangs, or is gone; names it.
        """
        try:
            yield
        except RuntimeError as error:
            gone = _GONE.search(str(error))
            if not gone and not _GAVE_UP.search(str(error)):
                raise
            absent = ", ".join(map(str, self._absent(_SOON if gone else self._patience)))
            who = f"{'ranks' if ',' in absent else 'rank'} {absent}" if absent else "a rank that has come since"
            raise UserError(f"{who} did not come to {what}", mend="look at what it does") from error

    def _absent(self, patience: float) -> list[int]:
        """The ranks that have not noted themselves in so many seconds; the first, if the list has gone with it."""
        until = time.monotonic() + patience
        absent = list(range(dist.get_world_size()))
        try:
            self._present.set(str(dist.get_rank()), "here")
            while absent and time.monotonic() < until:
                absent = [rank for rank in absent if not self._present.check([str(rank)])]
                time.sleep(_PAUSE)
        except RuntimeError:
            return [0]
        return absent
