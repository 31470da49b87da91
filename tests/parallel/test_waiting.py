"""A collective that gives up says which rank did not come."""

from datetime import timedelta
from pathlib import Path
from time import sleep

import pytest
import torch
import torch.distributed as dist

from intaglio.errors import UserError
from intaglio.parallel.waiting import Roll
from ranks import run_ranks


def summed(hanging: int, folder: Path) -> str:
    """Sums over ranks of which one does not come before the others have given up."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    dist.barrier()
    if dist.get_rank() == hanging:
        while len(list(folder.iterdir())) < dist.get_world_size() - 1:
            sleep(0.1)
        return "hung"
    try:
        with Roll(patience=4).named("step 12"):
            dist.all_reduce(torch.ones(3), group=group)
    except UserError as error:
        return str(error)
    finally:
        (folder / str(dist.get_rank())).touch()
    return "summed"


def others() -> str:
    """What has nothing to do with waiting."""
    with pytest.raises(RuntimeError, match="another matter"), Roll().named("step 1"):
        raise RuntimeError("another matter")
    with Roll().named("step 2"):
        dist.all_reduce(torch.ones(1))
    return "as it was"


@pytest.mark.parametrize("hanging", [0, 1])
def test_the_rank_that_hangs_is_named_by_all_others(hanging: int, tmp_path: Path) -> None:
    said = run_ranks(3, summed, hanging, tmp_path)
    wanted = f"rank {hanging} did not come to step 12; look at what it does"
    assert said == ["hung" if rank == hanging else wanted for rank in range(3)]


def test_other_errors_pass() -> None:
    assert run_ranks(2, others) == ["as it was"] * 2
