"""Where ranks meet. torchrun keeps one store for all its attempts, and what a dead attempt wrote there is still in it.

A rank that reads the address of one that is dead waits for an answer until its patience ends. So the first rank gives
each attempt a name of its own, and tells it to those who ask now: whoever asked before is gone, and never hears.
"""

import time
import uuid
from datetime import timedelta
from typing import Final

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from intaglio.errors import UserError

__all__ = ["meet"]

_PAUSE: Final = 0.02


def meet(patience: timedelta) -> tuple[Store, int, int]:
    """A store that only the ranks of this attempt know, this rank's number, and how many there are.

    Args:
        patience: how long to wait for the others.

    Raises:
        UserError: some did not come.
    """
    store, rank, world = next(rendezvous("env://", timeout=patience))
    name = _name_attempt(store, world, patience) if rank == 0 else _ask(store, rank, patience)
    return PrefixStore(name, store), rank, world


def _name_attempt(store: Store, world: int, patience: timedelta) -> str:
    """The first rank: answers every rank's latest question until all have heard."""
    name, until = uuid.uuid4().hex, time.monotonic() + patience.total_seconds()
    deaf = set(range(1, world))
    while deaf:
        for rank in deaf:
            if store.check([f"asks/{rank}"]):
                store.set(f"answers/{store.get(f'asks/{rank}').decode()}", name)
        deaf = {rank for rank in deaf if not store.check([f"heard/{name}/{rank}"])}
        if deaf and time.monotonic() > until:
            raise UserError(f"ranks {', '.join(map(str, sorted(deaf)))} did not come", where="torchrun")
        time.sleep(_PAUSE if deaf else 0)
    return name


def _ask(store: Store, rank: int, patience: timedelta) -> str:
    question = uuid.uuid4().hex
    store.set(f"asks/{rank}", question)
    try:
        store.wait([f"answers/{question}"], patience)
    except RuntimeError as error:
        raise UserError("rank 0 did not come", where="torchrun") from error
    name = store.get(f"answers/{question}").decode()
    store.set(f"heard/{name}/{rank}", "yes")
    return str(name)
