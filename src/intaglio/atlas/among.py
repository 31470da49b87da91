"""A few gloo ranks on this machine for a figure, each a process of its own."""

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

__all__ = ["on_ranks"]

_PATIENCE: Final = timedelta(minutes=2)


def on_ranks(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Calls a function in `world` processes that are the ranks of one group; what each returned, by rank.

    Args:
        world: ranks; each computes on one thread, without our own operators, whose memory nobody tracks.
        function: of a module, which the ranks import. It asks `torch.distributed` which rank it is.
        args: given to it.

    Raises:
        Exception: what a rank raised; a rank that waits for one that is gone gives up after two minutes.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(world, mp_context=get_context("spawn")) as pool,
    ):
        meet = Path(folder) / "meet"
        return [one.result() for one in [pool.submit(_rank, n, world, meet, function, args) for n in range(world)]]


def _rank(number: int, world: int, meet: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "INTAGLIO_NATIVE": "off"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meet.as_uri(), rank=number, world_size=world, timeout=_PATIENCE)
    try:
        return function(*args)
    finally:
        dist.destroy_process_group()
