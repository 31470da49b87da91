"""The same weights under two models: each may be wrapped or packed, and neither knows of it."""

import copy
from typing import Any

from torch import nn

__all__ = ["sharing"]


def sharing(model: nn.Module) -> Any:
    """A copy of the modules over the very same tensors: no memory, and what changes a weight changes it in both."""
    memo: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, memo)
