"""The ranks of a run as a mesh: which of them share what.

Dimensions from the outside in: `pp` stages of the pipeline, `replicate` copies of a set of shards, `shard` ranks that
share one, `cp` ranks that share a sequence, `tp` ranks that share every matrix. Ranks next to each other in tp have
neighbouring numbers, so that torchrun puts them on one machine.
"""

import warnings
from typing import Final

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from intaglio.errors import UserError
from intaglio.specs.parallel import ParallelSpec

__all__ = ["BATCHES", "DATA", "SHARDS", "build_mesh", "part", "require_world"]

DATA: Final = "dp"
"""Name of `replicate` and `shard` as one dimension: ranks that read other data."""

SHARDS: Final = "shard_cp"
"""Name of `shard` and `cp` as one dimension: ranks that share one set of shards."""

BATCHES: Final = "dp_cp"
"""Name of `replicate`, `shard` and `cp` as one dimension: ranks whose targets and gradients are summed."""


def require_world(spec: ParallelSpec, world: int) -> None:
    """Refuses a layout for another number of processes than there are.

    Raises:
        UserError: says how many it is for.
    """
    if spec.world != world:
        sizes = {"dp": spec.dp, "tp": spec.tp, "pp": spec.pp.ranks, "cp": spec.cp}
        made = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "one process"
        raise UserError(
            f"the layout is for {spec.world} {'process' if spec.world == 1 else 'processes'} ({made}), "
            f"and there {'is' if world == 1 else 'are'} {world}",
            where="parallel",
            mend=f"torchrun --nproc-per-node {spec.world} ..., or change the layout",
        )


def build_mesh(spec: ParallelSpec, device: str) -> DeviceMesh:
    """The mesh of a layout; a process group of that many ranks stands already.

    Args:
        spec: the layout.
        device: "cpu" or "cuda", with or without a number.

    Returns:
        Of dimensions pp, replicate, shard, cp and tp, each of 1 or more; and `DATA`, `SHARDS` and `BATCHES`.

    Raises:
        UserError: see `require_world`.
    """
    require_world(spec, dist.get_world_size())
    replicas = spec.hsdp if spec.zero else spec.dp
    sizes = {"pp": spec.pp.ranks, "replicate": replicas, "shard": spec.dp // replicas, "cp": spec.cp, "tp": spec.tp}
    mesh = init_device_mesh(device.partition(":")[0], tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    mesh["replicate", "shard"]._flatten(DATA)
    mesh["shard", "cp"]._flatten(SHARDS)
    mesh["replicate", "shard", "cp"]._flatten(BATCHES)
    return mesh


def part(mesh: DeviceMesh, *names: str) -> DeviceMesh:
    """The mesh of some dimensions; of those made of several too, which PyTorch warns of since it may find other names
    for them.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Slicing a flattened dim")
        return mesh[names if len(names) > 1 else names[0]]
