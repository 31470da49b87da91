"""What the machine can do: its memory, and two speeds, measured in a moment where the user does not say. No torch."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from intaglio.advice.needs import Needs

__all__ = ["Machine", "machine_of"]

_SIDE = 512
_COPIED = 1 << 24
_GIB = 1 << 30


@dataclass(frozen=True)
class Machine:
    """A machine, as far as costs are counted.

    Attributes:
        memory: bytes.
        flops: of matrix products, in a second.
        bandwidth: bytes of memory that it reads in a second.
    """

    memory: int
    flops: float
    bandwidth: float


def machine_of(needs: Needs) -> Machine:
    """What the user says of the machine, and for the rest this one."""
    return Machine(
        memory=round(needs.memory * _GIB) if needs.memory else _memory_here(),
        flops=needs.tflops * 1e12 if needs.tflops else _flops_here(),
        bandwidth=needs.bandwidth * 1e9 if needs.bandwidth else _bandwidth_here(),
    )


def _memory_here() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _flops_here() -> float:
    """Of fp32 products, which are what every CPU does well."""
    matrix = np.ones((_SIDE, _SIDE), np.float32)
    return 2 * _SIDE**3 / _least_seconds(lambda: matrix @ matrix)


def _bandwidth_here() -> float:
    """What is copied is read and written."""
    there = np.ones(_COPIED, np.uint8)
    copy = np.empty_like(there)
    return 2 * _COPIED / _least_seconds(lambda: np.copyto(copy, there))


def _least_seconds(work: Callable[[], object], times: int = 5) -> float:
    """Of a few tries the shortest, the first of which warms up."""
    spent = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return min(spent)
