"""The mesh: who shares what with whom, and who is refused."""

import time

import pytest
import torch
import torch.distributed as dist

from intaglio.errors import UserError
from intaglio.parallel.mesh import BATCHES, DATA, SHARDS, build_mesh, part, require_world
from intaglio.specs.parallel import ParallelSpec
from ranks import run_ranks


def _groups(spec: ParallelSpec) -> dict[str, list[int]]:
    mesh = build_mesh(spec, "cpu")
    names = ("pp", "replicate", "shard", "cp", "tp", DATA, SHARDS, BATCHES)
    assert part(mesh, "replicate", SHARDS).shape == (mesh["replicate"].size(), part(mesh, SHARDS).size())
    return {name: dist.get_process_group_ranks(part(mesh, name).get_group()) for name in names}


def _refused() -> None:
    build_mesh(ParallelSpec(dp=3), "cpu")


def _hangs() -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    time.sleep(60)


def test_a_mesh_has_its_ranks_where_they_belong() -> None:
    spec = ParallelSpec.model_validate({"dp": 2, "zero": 1, "hsdp": 2, "tp": 2})
    first = run_ranks(4, _groups, spec)[1]
    assert first["tp"] == [0, 1]
    assert first["replicate"] == first[DATA] == first[BATCHES] == [1, 3]
    assert first["shard"] == first[SHARDS] == first["pp"] == first["cp"] == [1]


def test_a_layout_for_another_number_of_processes_is_refused_in_one_line() -> None:
    with pytest.raises(
        UserError, match=r"^parallel: the layout is for 3 processes \(dp 3\), and there are 2; torchrun"
    ):
        run_ranks(2, _refused)
    with pytest.raises(UserError, match=r"for 1 process \(one process\), and there are 2"):
        require_world(ParallelSpec(), 2)


def test_ranks_that_hang_are_named() -> None:
    with pytest.raises(Exception, match=r"timeout|timed out|Timed out|not done in time"):
        run_ranks(2, _hangs, timeout=4)
