"""What a run tells: a progress bar, one JSON line a step, and curves at the end."""

import json
import math
import resource
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from intaglio.files import read_begun_lines
from intaglio.plots import draw_curves
from intaglio.training.board import Board
from intaglio.training.loop import Step

__all__ = ["Log", "measured_peak", "read_log", "step_seconds"]


class Log:
    """Writes `log.jsonl` and shows a bar; a context manager.

    Args:
        path: of the JSON lines; appended to.
        steps: of the whole run.
        flops_per_token: of the layers, forward and backward.
        flops_per_target: of the output matrix, which only targets pass through.
        peak: measured FLOPs per second of this machine's matrix products, for the share that is used (MFU).
        done: steps done before, when the run is resumed.
        quiet: no bar.
        board: gets the numbers of every line too.
    """

    def __init__(
        self,
        path: Path,
        steps: int,
        flops_per_token: float,
        flops_per_target: float,
        peak: float,
        *,
        done: int = 0,
        quiet: bool = False,
        board: Board | None = None,
    ) -> None:
        self._board = board
        self._file = path.open("a", encoding="utf-8")
        self._flops, self._peak, self._quiet = (flops_per_token, flops_per_target), peak, quiet
        columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
        console = Console(stderr=True)
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=quiet or not console.is_terminal)
        self._task = self._bar.add_task("", total=steps, completed=done)

    def __enter__(self) -> "Log":
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        self._file.close()
        if self._board:
            self._board.close()

    def step(self, step: Step) -> None:
        """One optimizer step."""
        speed = step.tokens / step.seconds
        share = (step.tokens * self._flops[0] + step.predicted * self._flops[1]) / step.seconds / self._peak
        self.line(
            step=step.number,
            loss=step.loss,
            **step.metrics,
            **_sometimes(step),
            grad_norm=None if step.skipped else step.grad_norm,
            learning_rate=step.learning_rate,
            tokens=step.tokens,
            targets=step.targets,
            tokens_per_second=round(speed, 1),
            mfu=round(share, 4),
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            * (1 if sys.platform == "darwin" else 1024),
        )
        words = f"loss {step.loss:.3f}  lr {step.learning_rate:.1e}  norm {step.grad_norm:.2f}"
        words += f"  {speed:.0f} tokens/s  MFU {share:.0%}"
        self._bar.update(self._task, completed=step.number, description=words)

    def line(self, **values: Any) -> None:
        """One JSON line; flushed, so that a kill loses nothing that was said. Numbers go to the board too."""
        if self._board:
            self._board.write(values)
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()

    def say(self, text: str) -> None:
        """A line above the bar."""
        if not self._quiet:
            self._bar.console.print(text, highlight=False, markup=False)


def _sometimes(step: Step) -> dict[str, Any]:
    """What only some runs have: an auxiliary loss, mixtures of experts, a scaled loss."""
    values: dict[str, Any] = {"extra": step.extra} if step.extra else {}
    if step.experts:
        values["balance"] = [use.balance for use in step.experts]
        values["expert_shares"] = [use.shares for use in step.experts]
    if step.loss_scale is not None:
        values |= {"loss_scale": step.loss_scale, "skipped": step.skipped}
    return values


def read_log(path: Path, until: int | None = None) -> list[dict[str, Any]]:
    """The lines of a log, up to step `until`; a last line that a kill cut off is left out."""
    lines = read_begun_lines(path) if path.exists() else []
    return [line for line in lines if until is None or line.get("step", 0) <= until]


def step_seconds(lines: Iterable[dict[str, Any]]) -> list[float]:
    """What each step of a log took."""
    return [line["tokens"] / line["tokens_per_second"] for line in lines if "tokens_per_second" in line]


def draw_log(path: Path, picture: Path) -> None:
    """Loss (training and held out), learning rate and gradient norm of a run, as a PNG."""
    lines = read_log(path)
    steps = [line for line in lines if "loss" in line]
    held_out = [(line["step"], line["eval_loss"]) for line in lines if "eval_loss" in line]
    loss = {"training": [(line["step"], line["loss"]) for line in steps]}
    panels = {
        "loss, nats a token": {**loss, "held out": held_out} if held_out else loss,
        "learning rate": {"": [(line["step"], line["learning_rate"]) for line in steps]},
        "gradient norm": {"": [(line["step"], line["grad_norm"]) for line in steps if line["grad_norm"] is not None]},
    }
    draw_curves(picture, panels, "step")


def measured_peak(dtype: torch.dtype, device: str = "cpu", size: int = 1024, seconds: float = 0.3) -> float:
    """FLOPs per second of a square matrix product on this machine, the best of several."""
    a = torch.ones(size, size, dtype=dtype, device=device) / 3  # no random numbers: a resumed run must draw its own
    _product_seconds(a)
    best, start = math.inf, time.perf_counter()
    while time.perf_counter() - start < seconds:
        best = min(best, _product_seconds(a))
    return 2 * size**3 / best


def _product_seconds(a: torch.Tensor) -> float:
    before = time.perf_counter()
    a @ a
    if a.device.type == "cuda":
        torch.cuda.synchronize(a.device)
    return time.perf_counter() - before
