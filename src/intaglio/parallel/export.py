"""From the pieces of a checkpoint to a model that can be saved like any other, without ever holding it whole.

The model's modules are there, its numbers are not: a tensor is read and put together when whoever writes a model
directory asks for it, and can be freed again when it is written. So one process writes what fits no process.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.parallel.checkpoint import shard_files
from intaglio.parallel.shards import Shards

__all__ = ["on_disk", "without_numbers"]


def without_numbers(model: nn.Module) -> Any:
    """A copy of a model's modules whose parameters have shapes and no numbers; what is tied there is tied here.

    Take it before the model is cut up over ranks.
    """
    memo: dict[int, Any] = {id(p): nn.Parameter(_empty(p, p.dtype), p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, memo)


def on_disk(model: nn.Module, checkpoint: Path, dtype: torch.dtype | None = None) -> nn.Module:
    """Lets the parameters of `model` be those of a checkpoint, each read when its numbers are asked for.

    Args:
        model: see `without_numbers`; changed in place, and returned. Only saving works on it: `save_model` and the
            like, which take the tensors one after the other.
        checkpoint: the folder, written by many ranks or by one. What of the model is not in it stays as it is.
        dtype: of the parameters; None takes the model's own. Buffers are the model's.

    Raises:
        UserError: a file of the checkpoint is damaged or missing.
    """
    shards = Shards(shard_files(checkpoint))
    changed: dict[int, nn.Parameter] = {}
    for module, name, full, parameter in _parameters(model):
        if full in shards.shapes and id(parameter) not in changed:
            changed[id(parameter)] = _stored(parameter, shards, full, dtype or parameter.dtype)
        if id(parameter) in changed:
            module._parameters[name] = changed[id(parameter)]
    return model


class _Stored(nn.Parameter):
    """A parameter without numbers that reads them when it is detached, as all that saves does first."""

    _shards: Shards
    _name: str

    def detach(self) -> Tensor:
        return self._shards.tensor(self._name).to(self.dtype)


def _stored(parameter: nn.Parameter, shards: Shards, name: str, dtype: torch.dtype) -> nn.Parameter:
    made = _empty(parameter, dtype).as_subclass(_Stored)
    made._shards, made._name = shards, name
    return made


def _parameters(model: nn.Module) -> list[tuple[nn.Module, str, str, nn.Parameter]]:
    """Each module with a parameter of its own, the parameter's name there and in the model."""
    return [
        (module, name, f"{path}.{name}" if path else name, parameter)
        for path, module in model.named_modules()
        for name, parameter in module._parameters.items()
        if parameter is not None
    ]


def _empty(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(tensor.shape, dtype=dtype, device="meta")
