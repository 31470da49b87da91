"""What a recipe asks for of machines, and the torchrun line that answers it. No torch."""

import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from intaglio.errors import UserError
from intaglio.specs import load_yaml, validate
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.changes import apply_change

__all__ = ["PORT", "Launch", "plan_launch"]

PORT: Final = 29500
"""Where ranks meet, unless a job's number gives another."""

_PER_NODE: Final = 8
_LONGEST_NAME: Final = 40  # Kubernetes puts numbers behind it, and has 63 letters for all


@dataclass(frozen=True)
class Launch:
    """A run over many processes.

    Attributes:
        recipe: its file.
        arguments: of `intaglio train`, behind the recipe.
        name: what to call the job.
        nodes: machines.
        per_node: processes of each, one to a device.
        gpu: whether the devices are GPUs.
        max_restarts: how often all processes are started anew after one has died.
    """

    recipe: Path
    arguments: tuple[str, ...]
    name: str
    nodes: int
    per_node: int
    gpu: bool
    max_restarts: int

    @property
    def world(self) -> int:
        """Processes of all."""
        return self.nodes * self.per_node

    @property
    def environment(self) -> dict[str, str]:
        """For every process, whoever starts it."""
        return {"NCCL_DEBUG": "WARN"} if self.gpu else {}

    def train(self, recipe: str | None = None) -> list[str]:
        """What every process runs: behind torchrun's own arguments."""
        return ["-m", "intaglio.cli.main", "train", recipe or str(self.recipe), *self.arguments, "--go-on"]

    def torchrun(self, meeting: str = f"$MASTER_ADDR:{PORT}", job: str | None = None) -> list[str]:
        """torchrun's own arguments; those of one machine need no meeting place.

        Args:
            meeting: host and port where the machines meet.
            job: what tells this job's machines from another's; the job's name if None.
        """
        counts = [f"--nnodes={self.nodes}", f"--nproc-per-node={self.per_node}", f"--max-restarts={self.max_restarts}"]
        if self.nodes == 1:
            return ["--standalone", *counts]
        return [*counts, "--rdzv-backend=c10d", f"--rdzv-endpoint={meeting}", f"--rdzv-id={job or self.name}"]

    def line(self) -> str:
        """For a shell, the same on every machine."""
        meeting = [_quoted(part) for part in self.torchrun()]
        return " ".join(["torchrun", *meeting, *map(shlex.quote, self.train())])

    def here(self) -> tuple[list[str], dict[str, str]]:
        """The command for this machine, and its environment: each process has its share of the cores.

        Raises:
            UserError: it is for several machines.
        """
        if self.nodes > 1:
            mend = "run the printed line on each, or take --slurm or --kubernetes"
            raise UserError(f"this is for {self.nodes} machines, and here is one", where="--run", mend=mend)
        threads = max(1, (os.cpu_count() or 1) // self.per_node)
        environment = {"OMP_NUM_THREADS": str(threads), **self.environment, **os.environ}
        return [sys.executable, "-m", "torch.distributed.run", *self.torchrun(), *self.train()], environment


def plan_launch(recipe: Path, changes: list[str], nodes: int | None, per_node: int | None, max_restarts: int) -> Launch:
    """How a recipe's layout goes on so many machines.

    Args:
        recipe: its file.
        changes: `key=value`, and `out=DIR`.
        nodes: machines; None takes one for every `per_node` ranks.
        per_node: devices of each; None divides the ranks evenly, eight to a machine at most.
        max_restarts: see `Launch`.

    Raises:
        UserError: the recipe has no layout, one that cannot be, or one for other numbers of devices.
    """
    data = load_yaml(recipe)
    if not isinstance(data, dict):
        raise UserError("not a mapping of keys to values", where=str(recipe))
    for change in changes:
        if not change.startswith("out="):
            apply_change(data, change)
    if sum(change.startswith("out=") for change in changes) != 1:
        raise UserError("say where the run goes: out=DIR", where="launch")
    layout = _layout(data, recipe)
    nodes, per_node = _machines(layout.world, nodes, per_node)
    gpu = str(data.get("device", "cpu")).startswith("cuda")
    return Launch(recipe, tuple(changes), _name(recipe), nodes, per_node, gpu, max_restarts)


def _layout(data: dict[str, Any], recipe: Path) -> ParallelSpec:
    where = f"{recipe}: parallel"
    if "stages" in data:
        what = "a file of several recipes, each of which is launched by itself"
        raise UserError(what, where=str(recipe), mend="put a stage's keys into a recipe of its own")
    if "parallel" not in data:
        mend = "say how it is laid out (parallel.dp=8), or run it with intaglio train"
        raise UserError("the recipe has no layout: it is for one process", where=where, mend=mend)
    layout: ParallelSpec = validate(ParallelSpec, data["parallel"], where)
    return layout


def _machines(world: int, nodes: int | None, per_node: int | None) -> tuple[int, int]:
    """As asked for, and what was not asked for so that it comes out even."""
    if nodes is None:
        nodes = max(1, world // (per_node or _PER_NODE))
    if per_node is None:
        per_node = max(1, world // nodes)
    if nodes * per_node != world:
        what = f"the layout is for {world} {'rank' if world == 1 else 'ranks'}, and {nodes} x {per_node} devices are"
        raise UserError(f"{what} {nodes * per_node}", where="parallel", mend="change the layout, or the devices")
    return nodes, per_node


def _name(recipe: Path) -> str:
    """The recipe's, as Kubernetes allows it."""
    plain = re.sub(r"[^a-z0-9]+", "-", recipe.stem.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    return f"run-{plain}" if not plain or plain[0].isdigit() else plain


def _quoted(part: str) -> str:
    """Quoted for a shell that is to fill in the address."""
    return f'"{part}"' if "$" in part else shlex.quote(part)
