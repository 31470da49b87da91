"""A model that is cut into stages, whole again for a while on the first rank: to write texts, to be measured or saved.

Every rank has built the whole model. What belongs to others' stages is given back once the stages are made, and only
its shape is kept. To put it together, each rank sends what it holds to the first rank of the pipeline, which has it in
a twin: the same modules without the hooks of FSDP2 and tensor parallelism, so that one rank alone may run it.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from intaglio.models.sharing import sharing

__all__ = ["Assembly"]

_Slot = tuple[str, str, str]
"""A module's name, whether it is a parameter or a buffer, and what that is called in it."""


class Assembly:
    """Takes a model apart and puts it together.

    Args:
        model: whole, before tensor parallelism, stages and FSDP2.
        group: the ranks of its pipeline.
    """

    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self._model, self._group, self._twin = model, group, sharing(model)
        self._rank = dist.get_rank(group)
        self._mine: set[_Slot] = set()
        self._empty()

    def release(self, own: nn.Module) -> None:
        """Gives back everything of the model but what `own` holds, which has the same modules."""
        kept = {id(module) for module in own.modules()}
        seen: set[int] = set()  # a tied matrix has two places, and is one
        for name, module in self._model.named_modules():
            for kind, key, tensor in list(_tensors(module)):
                if id(module) not in kept:
                    getattr(module, kind)[key] = _shape_of(tensor)
                elif id(tensor) not in seen:
                    seen.add(id(tensor))
                    self._mine.add((name, kind, key))

    @contextmanager
    @torch.no_grad()
    def whole(self, stages: Iterable[nn.Module]) -> Iterator[Any]:
        """The model with all its weights on the first rank, a useless one on the others.

        All ranks enter and leave together; what they do in between is their own affair.

        Args:
            stages: of this rank, which may be shared out by FSDP2.
        """
        sharded = [module for stage in stages for module in stage.modules() if isinstance(module, FSDPModule)]
        for module in sharded:
            module.unshard()
        self._collect()
        self._twin.train(self._model.training)
        try:
            yield self._twin
        finally:
            self._empty()
            for module in sharded:
                module.reshard()

    def _collect(self) -> None:
        """Sends every tensor of this rank that the first one has not, and there fills the twin."""
        modules = dict(self._model.named_modules())
        mine = {slot: _plain(getattr(modules[slot[0]], slot[1])[slot[2]]) for slot in sorted(self._mine)}
        held: list[dict[_Slot, tuple[torch.Size, torch.dtype]]] = [{} for _ in range(dist.get_world_size(self._group))]
        dist.all_gather_object(held, {slot: (t.shape, t.dtype) for slot, t in mine.items()}, group=self._group)
        twins, first = dict(self._twin.named_modules()), held[0]
        device = next(iter(mine.values())).device
        if self._rank == 0:
            self._fill(twins, mine)
        for rank, slots in enumerate(held[1:], start=1):
            for slot, (shape, dtype) in slots.items():
                if slot in first:
                    continue
                if self._rank == rank:
                    dist.send(mine[slot], group=self._group, group_dst=0)
                elif self._rank == 0:
                    came = torch.empty(shape, dtype=dtype, device=device)
                    dist.recv(came, group=self._group, group_src=rank)
                    self._fill(twins, {slot: came})
        if self._rank == 0 and hasattr(self._twin, "tie_weights"):
            self._twin.tie_weights()

    def _fill(self, twins: dict[str, nn.Module], tensors: dict[_Slot, Tensor]) -> None:
        for (name, kind, key), tensor in tensors.items():
            parameter = kind == "_parameters"
            getattr(twins[name], kind)[key] = nn.Parameter(tensor, requires_grad=False) if parameter else tensor

    def _empty(self) -> None:
        """The twin keeps nothing alive."""
        for module in self._twin.modules():
            for kind, key, tensor in list(_tensors(module)):
                getattr(module, kind)[key] = _shape_of(tensor)


def _tensors(module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """The parameters and buffers that a module has itself."""
    for kind in ("_parameters", "_buffers"):
        for key, tensor in getattr(module, kind).items():
            if tensor is not None:
                yield kind, key, tensor


def _plain(tensor: Tensor) -> Tensor:
    """All of a tensor, dense, whoever shares it."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().contiguous()


def _shape_of(tensor: Tensor) -> Tensor:
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
