"""A model that is shared out, whole for a while: for the engine, for files, for whatever reads weights at its own pace.

Hooks of FSDP2 send and receive, so all ranks must call a sharded model together and equally often. Who generates does
not. So each sharded model has a twin: the same modules without hooks, made before it was shared out, whose parameters
are gathered on all ranks at once and then are plain tensors that anyone may read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from intaglio.models.sharing import sharing

__all__ = ["remember", "whole"]


def remember(model: Any) -> None:
    """Makes the twin of a model that is about to be shared out."""
    twin = sharing(model)
    model.twin = twin, list(zip(model.modules(), twin.modules(), strict=True))
    _forget(model)


@contextmanager
def whole(model: Any) -> Iterator[Any]:
    """The model as one that is not shared out, with the weights as they are; itself if it is not.

    All ranks enter and leave together; what they do in between is their own affair. Weights are in the dtype that is
    computed in, and are read only.
    """
    if not hasattr(model, "twin"):
        yield model
        return
    twin, pairs = model.twin
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in sharded:
        module.unshard()
    for mine, its in pairs:
        its._parameters.update({name: _plain(parameter) for name, parameter in mine._parameters.items()})
    twin.train(model.training)
    try:
        yield twin
    finally:
        _forget(model)
        for module in sharded:
            module.reshard()


def _plain(parameter: Any) -> nn.Parameter | None:
    """What tp and ep have cut, in one piece."""
    if not isinstance(parameter, DTensor):
        plain: nn.Parameter | None = parameter
        return plain
    return nn.Parameter(parameter.full_tensor().detach(), requires_grad=parameter.requires_grad)


def _forget(model: Any) -> None:
    for mine, its in model.twin[1]:
        its._parameters.update(dict.fromkeys(mine._parameters))
