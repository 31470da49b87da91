"""What the benchmarks share: two sides timed in turn, medians, and one line of JSON at the end."""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

__all__ = ["in_turn", "model_directory", "read_bandwidth", "report", "seconds"]


def seconds(run: Callable[[], object]) -> float:
    """Wall time of one run."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def in_turn(ours: Callable[[], object], peer: Callable[[], object], rounds: int = 3) -> tuple[float, float]:
    """Median seconds of each, run as peer, ours, peer, ours, ... so that a drifting machine hits both."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        times[1].append(seconds(peer))
        times[0].append(seconds(ours))
    return statistics.median(times[0]), statistics.median(times[1])


def read_bandwidth(num_bytes: int = 2**28) -> float:
    """Bytes per second at which memory is read: the fastest of several passes over more than the caches hold."""
    block = torch.ones(num_bytes // 4, dtype=torch.int32)
    return num_bytes / min(seconds(block.max) for _ in range(8))


def report(name: str, **figures: object) -> None:
    """One line for people's eyes and machines' alike."""
    print(json.dumps({"benchmark": name, "threads": torch.get_num_threads(), **figures}), flush=True)


def model_directory() -> Path:
    """SmolLM2-135M-Instruct, pulled if need be."""
    from intaglio.checkpoints.pull import pull

    return pull("smollm2-135m-instruct")
