"""The same weights under two models: each may be wrapped or packed, and neither knows of it."""

import copy
from typing import Any

from torch import Tensor, nn

__all__ = ["sharing"]


def sharing(model: nn.Module) -> Any:
    """A copy of the modules over the very same tensors: no memory, and what changes a weight changes it in both."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    held = (value for module in model.modules() for value in vars(module).values())  # a router's last scores, say
    memo |= {id(value): value for value in held if isinstance(value, Tensor)}
    return copy.deepcopy(model, memo)
