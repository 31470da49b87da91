"""What the benchmarks share: sides timed in turn, medians, and one line of JSON at the end."""

import json
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

__all__ = ["apart_in_turn", "in_turn", "model_directory", "peak_gigabytes", "read_bandwidth", "report", "seconds"]


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


def apart_in_turn(sides: Mapping[str, Sequence[str]], rounds: int, threads: int) -> dict[str, dict[str, float]]:
    """Each side's command in processes of its own, one after the other, `rounds` times: the medians of its figures.

    Args:
        sides: commands by name; the last JSON object that one prints has its figures, whatever stands behind it.
        rounds: how often each is run.
        threads: that each may use.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, command in sides.items():
            found[name].append(_figures(command, threads))
    return {name: _medians(figures) for name, figures in found.items()}


def _figures(command: Sequence[str], threads: int) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    figures: dict[str, float] = json.loads([line for line in printed.splitlines() if line.startswith("{")][-1])
    return figures


def _medians(figures: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {key: round(statistics.median(one[key] for one in figures), 3) for key in figures[0]}


def peak_gigabytes() -> float:
    """The most memory this process has had resident, in 1e9 bytes (Linux counts it in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


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
