"""Storages that autograd keeps at some time, and those that pipeline stages hold: where plans' arithmetic is held
against a whole step and not a single forward."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

__all__ = ["Kept", "of_engine", "storages_of"]

Storages = dict[int, int]
"""Where they are, and their bytes."""


class Kept:
    """What autograd keeps now.

    Args:
        without: where parameters are.
    """

    def __init__(self, without: set[int]) -> None:
        self._without, self._count, self._sizes = without, Counter[int](), Storages()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within, everything that is kept is seen until it is let go of."""
        with saved_tensors_hooks(self._pack, lambda held: held.tensor if isinstance(held, _Held) else held):
            yield

    @property
    def storages(self) -> Storages:
        return {place: self._sizes[place] for place in self._count}

    def _pack(self, tensor: Tensor) -> Any:
        place, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
        if place in self._without or not size:
            return tensor
        self._count[place] += 1
        self._sizes[place] = size
        return _Held(self, place, tensor.detach())  # or a result and the operation that keeps it would hold each other

    def drop(self, place: int) -> None:
        """One operation less keeps it."""
        self._count[place] -= 1
        if not self._count[place]:
            del self._count[place]


@dataclass
class _Held:
    kept: Kept
    place: int
    tensor: Tensor

    def __del__(self) -> None:
        self.kept.drop(self.place)


def storages_of(tensors: Iterable[Any]) -> Storages:
    """Of some tensors; numbers do not count, and what is no tensor."""
    found = [tensor.untyped_storage() for tensor in tensors if isinstance(tensor, Tensor) and tensor.ndim]
    return {storage.data_ptr(): storage.nbytes() for storage in found}


def of_engine(stages: Iterable[Any]) -> tuple[Storages, Storages, Storages]:
    """Of PyTorch's stages: places for what comes in, in both directions; what has gone out and waits for its gradient;
    and gradients that wait between the two halves of a backward."""
    rooms, out, halves = Storages(), Storages(), Storages()
    for stage in stages:
        for places in (*stage.args_recv_info.values(), *stage.grad_recv_info.values()):
            rooms |= storages_of(place.buffer for place in places)
        for made, _ in stage.fwd_cache.values():
            out |= storages_of(made)
        for _, groups, made, _ in stage.backward_state.values():
            out |= storages_of(made)
            gradients = (one for group in groups or () for some in group["grads"] if some is not None for one in some)
            halves |= {place: size for place, size in storages_of(gradients).items() if size > torch.float32.itemsize}
    return rooms, {place: size for place, size in out.items() if place not in rooms}, halves
