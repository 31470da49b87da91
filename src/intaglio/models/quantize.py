"""Matrices of 4 bits in the place of a model's own; see `parts.nf4`."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.parts.block import Block
from intaglio.parts.moe import Experts
from intaglio.parts.nf4 import NF4Linear, NF4Stack, NF4Weight

__all__ = ["frozen_matrices", "plain_tensors", "put_matrix", "quantized_matrices"]


def frozen_matrices(model: nn.Module) -> list[str]:
    """The matrices that 4 bits are for, by name: those of the layers, experts included; neither router nor head."""
    return [name for path, block in model.named_modules() if isinstance(block, Block) for name in _of(path, block)]


def _of(path: str, block: Block) -> Iterator[str]:
    for inner, module in block.named_modules(prefix=path):
        if isinstance(module, nn.Linear):
            yield f"{inner}.weight"
        elif isinstance(module, Experts):
            yield from (f"{inner}.{name}" for name, _ in module.named_parameters(recurse=False))


def put_matrix(model: nn.Module, name: str, weights: Sequence[NF4Weight]) -> None:
    """Puts 4 bits in the place of a matrix (one weight) or of a stack of experts' (one for each).

    Args:
        model: changed in place.
        name: one of `frozen_matrices`.
        weights: what it is from now on.
    """
    path, _, attribute = name.rpartition(".")
    owner: Any = model.get_submodule(path)
    if isinstance(owner, Experts):
        delattr(owner, attribute)
        setattr(owner, attribute, NF4Stack(weights))
    else:
        model.set_submodule(path, NF4Linear(weights[0], owner.bias))


def quantized_matrices(model: nn.Module) -> dict[str, NF4Linear | NF4Stack]:
    """What stands in the place of a model's matrices, by the names that they had before."""
    found: dict[str, NF4Linear | NF4Stack] = {}
    experts: set[nn.Module] = set()
    for path, module in model.named_modules():
        if isinstance(module, NF4Stack):
            found[path] = module
            experts.update(module)
        elif isinstance(module, NF4Linear) and module not in experts:
            found[f"{path}.weight"] = module
    return found


def plain_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by name; a matrix that is 4 bits under the name that it had, and without numbers."""
    matrices = quantized_matrices(model)
    inside = {id(tensor) for module in matrices.values() for tensor in module.buffers()}
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    outside = {name: tensor for name, tensor in tensors.items() if id(tensor) not in inside}
    return outside | {name: torch.empty(module.shape, device="meta") for name, module in matrices.items()}
