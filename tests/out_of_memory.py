"""Memory that runs out when a test says so, with the errors that torch has for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from intaglio.parts.block import Block

__all__ = ["ON_CUDA", "on_cpu", "on_cuda", "short"]

ON_CUDA = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1 is free."


def on_cpu() -> None:
    """More than there is: the allocator says so itself."""
    torch.empty(10**15)


def on_cuda() -> None:
    """As torch says it of a GPU."""
    raise torch.OutOfMemoryError(ON_CUDA)


@contextmanager
def short(after: int, fails: Callable[[], None] = on_cpu, *, drawing: bool = False) -> Iterator[None]:
    """Memory runs out at a layer's forward, after so many that learn (or draw)."""
    seen = count()

    def hook(module: nn.Module, args: Any) -> None:
        counted = isinstance(module, Block) and torch.is_grad_enabled() is not drawing
        if counted and next(seen) >= after:
            fails()

    handle = register_module_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()
