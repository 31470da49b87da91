"""Memory that runs out in a run: the planner says what takes most, what to change, and what each change gains.

On a GPU torch says so, and a CPU's allocator where the system lets it: Linux mostly gives what it has not, and kills
the process later. Libraries below (cuBLAS, NCCL, our own C++) have words of their own for it.
"""

import errno
import os
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import torch

from intaglio.errors import UserError
from intaglio.lineage.units import short_bytes
from intaglio.planning.job_plan import JobPlan
from intaglio.specs import DecoderSpec, ModelSpec
from intaglio.training.memory.planned import as_changes, helpful, largest, memory_plan, on_cpu, what_helps
from intaglio.training.processes.ranks import start_line
from intaglio.training.recipe import Recipe
from intaglio.training.state import last_checkpoint

__all__ = ["explaining_shortage", "is_shortage"]

_SAID: Final = re.compile(r"out of memory|can(no|')t allocate memory|ALLOC_FAILED|bad_alloc", re.IGNORECASE)
_ASKED: Final = re.compile(r"tried to allocate ([\d.]+) ?(bytes|[KMGT]iB)", re.IGNORECASE)
_OF_DEVICE: Final = re.compile("cuda|cublas|cudnn|nccl", re.IGNORECASE)
_HOST: Final = "give it more, run fewer ranks on it, or leave out what moves there: offload, optimizer paged_adamw"
_USUAL: Final = "a smaller micro_batch with more accumulation, a shorter max_length or checkpointing: 1 take less"


@contextmanager
def explaining_shortage(
    recipe: Recipe, run: Path, spec: Callable[[], ModelSpec], steps: Callable[[], int]
) -> Iterator[None]:
    """Turns memory that runs out into an error that says what to change; the run's last checkpoint is left as it is.

    Args:
        recipe: of the run.
        run: its folder.
        spec: tells what the model is.
        steps: tells how many are done.

    Raises:
        UserError: memory ran out; names the rank where there are several.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if not is_shortage(error):
            raise
        traceback.clear_frames(error.__traceback__)  # lets go of what the step had made
        raise _told(error, recipe, run, spec(), steps()) from error


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that there is too little memory."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and _SAID.search(str(error)) is not None


def _told(error: BaseException, recipe: Recipe, run: Path, spec: ModelSpec, steps: int) -> UserError:
    plan, of_host = _planned(recipe, spec), _of_host(error, recipe)
    what = f"{'the host ran out of memory' if of_host else 'memory ran out'} {_when(steps)}{_asked(error)}"
    rank = f"rank {os.environ.get('RANK', '0')}" if _several() else ""
    if plan is None or of_host:
        return UserError(what, where=rank, mend=f"{_HOST if of_host else _USUAL}; {_kept(run)}")
    name, size = largest(plan)
    planned = f"a step is planned to take {short_bytes(plan.peak_bytes)}, {short_bytes(size)} of it {name}"
    return UserError(f"{what}; {planned}", where=rank, mend=_mend(recipe, run, plan))


def _several() -> bool:
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _planned(recipe: Recipe, spec: ModelSpec) -> JobPlan | None:
    """None where there are no closed forms for it."""
    try:
        return memory_plan(recipe, spec) if isinstance(spec, DecoderSpec) else None
    except UserError:
        return None


def _of_host(error: BaseException, recipe: Recipe) -> bool:
    """Whether it is the host's memory that is short, beside a device with its own."""
    of_device = isinstance(error, torch.OutOfMemoryError) or _OF_DEVICE.search(str(error))
    return not on_cpu(recipe) and not of_device


def _when(steps: int) -> str:
    return f"after {steps} step{'' if steps == 1 else 's'}" if steps else "before the first step was done"


def _asked(error: BaseException) -> str:
    found = _ASKED.search(str(error))
    if found is None:
        return ""
    number, unit = found.groups()
    size = short_bytes(int(float(number))) if unit == "bytes" else f"{number} {unit}"
    return f" ({size} more were asked for)"


def _mend(recipe: Recipe, run: Path, plan: JobPlan) -> str:
    """What helps, and how to go on with what there is."""
    found, kept = helpful(recipe, plan), _kept(run)
    if not found:
        return f"take a device with more memory; {kept}"
    again = next((one for one in found if one.alike), None)
    if again is not None and (run / "recipe.yaml").exists():
        kept += f"; go on with: {start_line()} train {run / 'recipe.yaml'} out={run} {as_changes(again)} --go-on"
    return f"{what_helps(found)}; {kept}"


def _kept(run: Path) -> str:
    path = last_checkpoint(run)
    return f"the last checkpoint is {path}" if path else "there is no checkpoint yet"
