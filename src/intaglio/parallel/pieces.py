"""Parameters that ranks share, and parts that compute with their own piece.

A parameter that is shared out is a DTensor: it has the shape of the whole and knows which piece is here, which is what
optimizers, checkpoints and FSDP2 ask for. The parts of a model know nothing of that. So while a part runs, each of its
parameters reads as the plain tensor of its piece, and the part computes as on one device, only less: fewer heads, a
narrower feed-forward. No operator needs to know of DTensors, fused ones included.

Two kinds of parameter are whole on every rank although the part computes only a summand of its result:
- what all pieces go through (norms of heads, the latent's matrices, an adapter's A beside columns): every rank has a
  part of its gradient, and they are summed;
- what is added behind the sum (a bias beside rows): the first rank alone adds it.

Legend: O outputs, I inputs, r rank of an adapter, X experts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from intaglio.parallel.collectives import bounds, share

__all__ = ["Pieces", "Plan", "kept", "place", "place_all", "read_pieces"]


@dataclass(frozen=True)
class Plan:
    """Which matrices of a part are cut, and which way.

    Attributes:
        columns: by what they make: each rank has some rows of (..., O, I), and the biases that go with them.
        rows: by what they read: each rank has some columns of (..., O, I), and its product is a summand.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    def dimension(self, name: str, tensor: Tensor) -> int | None:
        """Along which dimension a parameter is cut, None for none; `name` as seen from the part."""
        steps, whole = name.split("."), tensor.ndim < 2
        if any(step in self.columns for step in steps):
            return None if steps[-1] in ("lora_A", "start_A") else (0 if whole else tensor.ndim - 2)
        if any(step in self.rows for step in steps):
            return None if whole or steps[-1] in ("lora_B", "start_B") else tensor.ndim - 1
        return None

    def is_once(self, name: str) -> bool:
        """Whether it is added behind the sum over ranks."""
        steps = name.split(".")
        return steps[-1] in ("bias", "lora_bias") and any(step in self.rows for step in steps)


def place(whole: Tensor, mesh: DeviceMesh, dim: int | None) -> DTensor:
    """The DTensor whose pieces are those of a tensor that every rank has, cut along `dim`; None: whole everywhere.

    The piece has memory of its own. Along further dimensions of a mesh, DTensors are cut again.

    Args:
        whole: of the same values on every rank; or a DTensor on the rightmost dimensions of `mesh`.
        mesh: of one dimension more than `whole` has been placed on.
        dim: of the tensor.
    """
    placements: tuple[Placement, ...] = (Replicate() if dim is None else Shard(dim),)
    local = whole.detach()
    if isinstance(local, DTensor):
        placements, local = (*placements, *local.placements), local.to_local()
    if dim is not None:
        local = local.narrow(dim, *bounds(local.shape[dim], mesh.get_group(0)))
    local = local.clone(memory_format=torch.contiguous_format)
    stride = torch.empty(whole.shape, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=whole.shape, stride=stride)


def place_all(part: nn.Module, mesh: DeviceMesh, plan: Plan) -> None:
    """Puts a DTensor in the place of every parameter of a part, and of every buffer that is cut."""
    for inner, name, path in list(_owned(part)):
        tensor = getattr(inner, name)
        dim = plan.dimension(path, tensor)
        if isinstance(tensor, nn.Parameter):
            setattr(inner, name, nn.Parameter(place(tensor, mesh, dim), requires_grad=tensor.requires_grad))
        elif dim is not None:
            setattr(inner, name, place(tensor, mesh, dim))


def _owned(part: nn.Module) -> Iterator[tuple[nn.Module, str, str]]:
    """Every parameter and buffer: who has it, under which name, and its name as seen from the part."""
    for prefix, inner in part.named_modules():
        for name, tensor in (*inner._parameters.items(), *inner._buffers.items()):
            if tensor is not None:
                yield inner, name, f"{prefix}.{name}" if prefix else name


class Pieces:
    """Lets a part read its pieces while it runs: a pair of hooks.

    Args:
        group: the ranks.
        summed: whether every rank has a part of the gradient of what is whole; else all have the same.
        plan: says what is added once.
    """

    def __init__(self, group: dist.ProcessGroup, summed: bool, plan: Plan) -> None:
        self.group, self.summed, self.plan = group, summed, plan

    def show(self, part: nn.Module, args: Any) -> None:
        """Before the forward."""
        for inner, name, path in _owned(part):
            tensor = inner._parameters.get(name, inner._buffers.get(name))
            if isinstance(tensor, DTensor):
                inner.__dict__[name] = self._piece(tensor, path)  # found before the parameter is

    def hide(self, part: nn.Module, args: Any, out: Any) -> None:
        """Behind it."""
        for inner, name, _ in _owned(part):
            inner.__dict__.pop(name, None)

    def _piece(self, tensor: DTensor, path: str) -> Tensor:
        piece: Tensor = tensor.to_local()
        if not self.summed or tensor.placements[-1].is_shard():
            return piece
        piece = share(piece, self.group)
        return piece * 0 if self.plan.is_once(path) and dist.get_rank(self.group) else piece


def read_pieces(part: nn.Module, group: dist.ProcessGroup, summed: bool, plan: Plan | None = None) -> None:
    """Lets a part whose parameters are placed read its pieces; see `Pieces`."""
    pieces = Pieces(group, summed, plan or Plan())
    part.register_forward_pre_hook(kept(pieces.show))
    part.register_forward_hook(kept(pieces.hide), always_call=True)


def kept(method: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that copies of its module have too, the very same: it holds groups of ranks, which nobody can copy."""
    return lambda *args: method(*args)
