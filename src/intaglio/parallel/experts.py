"""Expert parallelism: the experts of a mixture spread over ranks that read different batches (Lepikhin et al. 2020).

Every rank routes its own tokens, sends each to the ranks that have its experts, and gets back what they made of it: two
all-to-alls in the forward and two in the backward. So an expert has the gradient of all those ranks' tokens when the
backward is done, and what the others share out as gradients is not to be summed over `ep` for it.

Legend: W ranks of ep, X experts, E features.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.parallel.pieces import kept, place, read_pieces
from intaglio.parts.moe import MixtureOfExperts
from intaglio.planning.layouts import require_possible
from intaglio.specs.parallel import ParallelSpec

__all__ = ["COPIES", "EXPERTS", "expert_mesh", "of_experts", "parallelize", "spread_experts"]

EXPERTS = "ep"
"""Name of the dimension along which experts are spread."""

COPIES = "expert_copies"
"""Name of the dimension whose ranks have the same experts: over it their gradients are summed."""


def expert_mesh(mesh: DeviceMesh, spec: ParallelSpec) -> DeviceMesh:
    """The ranks once more, their dp cut into `COPIES` and `EXPERTS`; of dimensions pp, `COPIES`, cp, `EXPERTS` and tp.

    A collective: every rank makes it.

    Args:
        mesh: as of `mesh.build_mesh`.
        spec: its layout.
    """
    ranks = mesh.mesh.reshape(spec.pp.ranks, spec.dp // spec.ep, spec.ep, spec.cp, spec.tp).transpose(2, 3)
    names = ("pp", COPIES, "cp", EXPERTS, "tp")
    return DeviceMesh(mesh.device_type, ranks.contiguous(), mesh_dim_names=names)


def parallelize(model: Decoder, mesh: DeviceMesh, spec: ParallelSpec) -> None:
    """Spreads the experts of a decoder in place; every rank has the same weights when it comes.

    Their stacks become DTensors on `mesh["ep"]`, or on `mesh["ep", "tp"]` where tp has cut them already.

    Args:
        model: behind `tensor.parallelize`, before FSDP2.
        mesh: of `expert_mesh`.
        spec: of which `ep` and `tp` count.

    Raises:
        UserError: see `require_possible`; or experts are in 4 bits.
    """
    if spec.ep == 1:
        return
    require_possible(model.spec, spec)
    over = mesh[EXPERTS, "tp"] if spec.tp > 1 else mesh[EXPERTS]
    for module in model.modules():
        if isinstance(module, MixtureOfExperts):
            _spread(module.experts, over, tensor=spec.tp > 1)


def of_experts(parameter: Tensor) -> bool:
    """Whether a parameter is a piece of a stack of experts that is spread over ranks."""
    return isinstance(parameter, DTensor) and EXPERTS in (parameter.device_mesh.mesh_dim_names or ())


def spread_experts(model: nn.Module) -> Iterator[nn.Module]:
    """The parts of a model whose parameters are spread: FSDP2 shares them out over `COPIES`, in groups of their own."""
    for module in model.modules():
        if isinstance(module, MixtureOfExperts) and any(of_experts(p) for p in module.experts.parameters()):
            yield module.experts


def _spread(experts: nn.Module, mesh: DeviceMesh, *, tensor: bool) -> None:
    if any(hasattr(module, "quantized") for module in experts.modules()):
        raise UserError(
            "experts in 4 bits are not spread over ranks", where="parallel.ep", mend="take zero 3 for QLoRA"
        )
    for inner in list(experts.modules()):
        for name, parameter in list(inner.named_parameters(recurse=False)):
            piece = place(parameter, mesh, 0)
            setattr(inner, name, nn.Parameter(piece, requires_grad=parameter.requires_grad))
    if not tensor:  # or the hooks that let them be read are there
        read_pieces(experts, mesh.get_group(), summed=False)
    travel = _Travel(mesh.get_group(0))
    experts.register_forward_pre_hook(kept(travel.there))
    experts.register_forward_hook(kept(travel.back))


@dataclass
class _Trip:
    """Where rows went.

    Attributes:
        sent, received: rows to and from each rank.
        order: of the received ones, which come rank by rank, by expert.
    """

    sent: list[int]
    received: list[int]
    order: Tensor


class _Travel:
    """Hooks around the experts of a rank: rows go to where their expert is, and come back.

    Args:
        group: the ranks of ep.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.trips = group, list[_Trip]()

    def there(self, experts: nn.Module, args: Any) -> tuple[Tensor, Tensor]:
        """(rows, E) sorted by expert and ends (X,) -> the same of this rank's experts, ends (X / W,)."""
        x, ends = args
        world = dist.get_world_size(self.group)
        counts = ends.diff(prepend=ends.new_zeros(1)).long().view(world, -1)  # (W, X / W)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts, group=self.group)
        expert = torch.arange(counts.shape[1], device=x.device).repeat(world)
        order = expert.repeat_interleave(theirs.flatten()).argsort(stable=True)
        trip = _Trip(counts.sum(dim=1).tolist(), theirs.sum(dim=1).tolist(), order)
        self.trips.append(trip)
        rows: Tensor = _Sent.apply(x, trip.sent, trip.received, self.group)
        return rows[order], theirs.sum(dim=0).cumsum(dim=0).to(ends.dtype)

    def back(self, experts: nn.Module, args: Any, out: Tensor) -> Tensor:
        """(rows of this rank's experts, E) -> (rows of this rank's tokens, E)"""
        trip = self.trips.pop()
        rows = torch.empty_like(out).index_copy(0, trip.order, out)
        home: Tensor = _Sent.apply(rows, trip.received, trip.sent, self.group)
        return home


class _Sent(torch.autograd.Function):
    """So many rows to each rank, so many from each; gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.how = received, sent, group
        return _exchange_rows(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        return _exchange_rows(d_outs[0], *ctx.how), None, None, None


def _exchange_rows(x: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    out = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out
