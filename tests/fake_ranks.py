"""One process that takes itself for a rank among many: what a rank keeps, without the others.

The group is PyTorch's fake one, whose collectives send nothing. What would come from other ranks is what this one has
sent itself: as if all had the same. So shapes are right, numbers are finite, and as many tokens come as go.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

__all__ = ["fake_rank"]


@contextmanager
def fake_rank(rank: int, world: int) -> Iterator[None]:
    """This process is `rank` of `world`."""
    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_gather_single", "all_to_all_single", "all_gather_into_tensor", "reduce_scatter_single"):
            patch.setattr(dist, name, _alike)
        patch.setattr(dist, "recv", _yes)
        try:
            yield
        finally:
            dist.destroy_process_group()


@torch.no_grad()
def _alike(out: Tensor, x: Tensor, *more: Any, **options: Any) -> None:
    """What came from everyone is what was sent, over and over, or a part of it."""
    flat = x.reshape(-1)
    out.view(-1).copy_(flat.repeat(-(-out.numel() // max(flat.numel(), 1)))[: out.numel()])


def _yes(x: Tensor, *more: Any, **options: Any) -> None:
    """Pipelines vote on whether all of them know the shapes."""
    x.fill_(1)
