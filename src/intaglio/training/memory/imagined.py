"""One rank of a layout that stands alone: its process group sends nothing.

A *fake* group (PyTorch's own, for simulations) has as many ranks as are asked for, of which one exists: collectives
return at once. What is shared out, gathered and given back is what a rank of the real group would have.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.tensor import DTensor

from intaglio.parallel.experts import expert_mesh
from intaglio.parallel.mesh import DATA, build_mesh, part
from intaglio.specs.parallel import ParallelSpec
from intaglio.training.batching.batches import Batch
from intaglio.training.lesson import Lesson, Part
from intaglio.training.processes.ranks import ALONE, Ranks
from intaglio.training.processes.staged import Staged
from intaglio.training.processes.together import Together
from intaglio.training.stepping.master import MasterWeights

__all__ = ["imagined_ranks"]

T = TypeVar("T")


@contextmanager
def imagined_ranks(spec: ParallelSpec, rank: int = 0, device: str = "cpu") -> Iterator[Ranks]:
    """Rank `rank` of a layout, in a fake group that stands while the block runs; one process alone needs none.

    Raises:
        AssertionError: this process is a rank of a group already.
    """
    if spec.world == 1:
        yield ALONE
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    assert not dist.is_initialized(), "this process is a rank of a group"
    dist.init_process_group("fake", rank=rank, world_size=spec.world, store=FakeStore())
    try:
        yield (_ImaginedStage if spec.pp.ranks > 1 else _Imagined)(spec, device)
    finally:
        dist.destroy_process_group()
        _forget()


def _forget() -> None:
    """DTensors' operations remember the layouts that they were asked for, and with them groups that are no more."""
    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    torch._C._clear_DTensor_sharding_propagator_cache()


class _Imagined(Together):
    """See `Together`. Meshes have real numbers, by which they are taken apart: while they are, tensors are no fakes."""

    def __init__(self, spec: ParallelSpec, device: str) -> None:
        self.spec, self._device = spec, device
        self.mesh = build_mesh(spec, device)
        self.experts = expert_mesh(self.mesh, spec) if spec.ep > 1 else None
        data = part(self.mesh, DATA)
        self.number, self.count, self.first = data.get_local_rank(), data.size(), True

    def gather(self, value: T) -> list[T]:
        return [value] * self.count

    def lay_out(self, model: nn.Module, dtype: torch.dtype, make: Callable[[], T]) -> tuple[MasterWeights, T]:
        with unset_fake_temporarily():
            return super().lay_out(model, dtype, make)

    def sum_gradients(self, masters: MasterWeights) -> None:
        with unset_fake_temporarily():
            super().sum_gradients(masters)

    def clip(self, parameters: Sequence[nn.Parameter], largest: float) -> float:
        with unset_fake_temporarily():
            return super().clip(parameters, largest)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        yield


class _ImaginedStage(_Imagined, Staged):
    """See `Staged`; what other stages tell nobody hears."""

    def learn(self, model: nn.Module, lesson: Lesson, batches: Sequence[Batch]) -> list[Part]:
        self._set_mode(model)
        self.pipeline.run(batches, lesson)
        return [Part(1.0, 0.0, [], {}, batch.num_targets, batch.ids.numel(), batch.predicted) for batch in batches]
