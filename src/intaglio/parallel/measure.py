"""What a rank holds from step to step, in bytes, counted on the tensors themselves: what a plan is checked with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

__all__ = ["StateBytes", "state_bytes"]


@dataclass(frozen=True)
class StateBytes:
    """Bytes of one rank. A piece counts as long as it is; that FSDP2 keeps it in the storage of a longer one does not.

    Attributes:
        weights: the model's parameters and buffers, its shards of them where they are shared out.
        masters: of the weights that train, where these are in another dtype.
        gradients: that there are now.
        optimizer_states: moments and counts of steps.
    """

    weights: int
    masters: int
    gradients: int
    optimizer_states: int


def state_bytes(model: nn.Module, masters: Sequence[Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> StateBytes:
    """Counts.

    Args:
        model: between two steps, so that nothing is gathered.
        masters: what the optimizers step.
        optimizers: over them.
    """
    mine = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    gradients = [tensor.grad for tensor in (*masters, *mine.values()) if tensor.grad is not None]
    states = [value for one in optimizers for state in one.state.values() for value in state.values()]
    return StateBytes(
        weights=_bytes(mine.values()),
        masters=_bytes(master for master in masters if id(master) not in mine),
        gradients=_bytes({id(gradient): gradient for gradient in gradients}.values()),
        optimizer_states=_bytes(value for value in states if isinstance(value, Tensor)),
    )


def _bytes(tensors: Iterable[Tensor]) -> int:
    pieces = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return sum(piece.numel() * piece.element_size() for piece in pieces)
