"""The norm of gradients that lie in pieces on many ranks: each number counts once.

`torch.nn.utils.clip_grad_norm_` takes DTensors of one mesh alone. A model has more kinds: norms that are plain where
nothing shards them, matrices cut by tp, by shards or by both, experts on a mesh of their own.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate

__all__ = ["clip_gradients", "gradient_norm"]


@torch.no_grad()
def gradient_norm(parameters: Iterable[Tensor], across: Iterable[dist.ProcessGroup] = ()) -> Tensor:
    """The norm of all gradients, the same number on every rank, in fp32 at least.

    Args:
        parameters: those that train; plain tensors have the same gradient on every rank.
        across: groups whose ranks have other parameters altogether, such as the stages of a pipeline.
    """
    squares: dict[tuple[dist.ProcessGroup, ...], list[Tensor]] = {}
    device = torch.device("cpu")
    for gradient in (p.grad for p in parameters if p.grad is not None):
        piece, groups = _piece(gradient)
        wide = torch.promote_types(piece.dtype, torch.float32)
        squares.setdefault(groups, []).append(torch.linalg.vector_norm(piece, dtype=wide).square())
        device = piece.device
    total = torch.zeros((), dtype=torch.float64, device=device)
    for groups in sorted(squares, key=lambda groups: [group.group_name for group in groups]):  # alike on every rank
        total += _summed(torch.stack(squares[groups]).sum(dtype=torch.float64), groups)
    return _summed(total, tuple(across)).sqrt()


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], largest: float, norm: Tensor) -> None:
    """Scales gradients in place so that their norm, which is `norm`, is at most `largest`."""
    factor = (largest / (norm + 1e-6)).clamp(max=1.0)
    for gradient in (p.grad for p in parameters if p.grad is not None):
        piece, _ = _piece(gradient)
        piece.mul_(factor.to(piece.dtype))


def _piece(gradient: Tensor) -> tuple[Tensor, tuple[dist.ProcessGroup, ...]]:
    """What is here of a gradient, and the groups that share it out."""
    if not isinstance(gradient, DTensor):
        return gradient, ()
    mesh, placements = gradient.device_mesh, gradient.placements
    assert not any(isinstance(placement, Partial) for placement in placements), "a gradient in parts is not yet one"
    cut = [dim for dim, placement in enumerate(placements) if not isinstance(placement, Replicate)]
    return gradient.to_local(), tuple(mesh.get_group(dim) for dim in cut)


def _summed(x: Tensor, groups: Iterable[dist.ProcessGroup]) -> Tensor:
    for group in groups:
        dist.all_reduce(x, group=group)
    return x
