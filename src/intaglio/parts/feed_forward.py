"""Feed-forward: two matrices and a bend, or three where a gate multiplies.

Legend: (..., E) features of the model, (..., I) intermediate features.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.specs import FeedForwardSpec, SwishSpec
from intaglio.specs.feed_forward import ActivationSpec

__all__ = ["ACTIVATIONS", "FeedForward", "Swish", "build_activation"]


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}
"""One function per `ActivationName`: max(0, x); x * Phi(x); its tanh form; x * sigmoid(x); sigmoid(x)."""


class Swish(nn.Module):
    """See `SwishSpec`."""

    def __init__(self, spec: SwishSpec) -> None:
        super().__init__()
        self.beta: nn.Parameter | float = nn.Parameter(torch.tensor(spec.beta)) if spec.learned else spec.beta

    def forward(self, x: Tensor) -> Tensor:
        """(...) -> (...)"""
        return x * torch.sigmoid(self.beta * x)


def build_activation(spec: ActivationSpec) -> Callable[[Tensor], Tensor]:
    """The function (or module, where it has a parameter) that `spec` names."""
    return Swish(spec) if isinstance(spec, SwishSpec) else ACTIVATIONS[spec]


class FeedForward(nn.Module):
    """See `FeedForwardSpec`."""

    def __init__(self, spec: FeedForwardSpec, hidden_size: int) -> None:
        super().__init__()
        size = spec.intermediate_size
        self.activation = build_activation(spec.activation)
        self.gate_proj = nn.Linear(hidden_size, size, bias=spec.bias) if spec.gated else None
        self.up_proj = nn.Linear(hidden_size, size, bias=spec.bias)
        self.gate_up_proj: nn.Module | None = None  # both as one product, where `engine.packed` joins them
        self.down_proj = nn.Linear(size, hidden_size, bias=spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(..., E) -> (..., E)"""
        return self.down_proj(self.inner(x))

    def inner(self, x: Tensor) -> Tensor:
        """(..., E) -> (..., I)"""
        if self.gate_up_proj:
            gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        elif self.gate_proj:
            gate, up = self.gate_proj(x), self.up_proj(x)
        else:
            return self.activation(self.up_proj(x))
        return self.activation(gate) * up
