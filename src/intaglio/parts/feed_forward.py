"""Feed-forward: two matrices and a bend, or three where a gate multiplies.

Legend: (..., E) features of the model, (..., I) intermediate features.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.native import gradients
from intaglio.specs import FeedForwardSpec, SwishSpec
from intaglio.specs.feed_forward import ActivationSpec

__all__ = ["ACTIVATIONS", "FeedForward", "Swish", "build_activation", "gate_with"]


def _relu2(x: Tensor) -> Tensor:
    return F.relu(x).square()


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu2": _relu2,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
}
"""One function per `ActivationName`: max(0, x); its square (So et al. 2021, arXiv 2109.08668); x * Phi(x); its tanh
form; x * sigmoid(x); sigmoid(x)."""


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
        return gate_with(self.activation, gate, up)


def gate_with(activation: Callable[[Tensor], Tensor], gate: Tensor, up: Tensor) -> Tensor:
    """activation(gate) * up, all (..., I)."""
    lean = gate.dtype == torch.bfloat16 and gate.device.type == "cpu" and not torch.compiler.is_compiling()
    if activation is F.silu and lean and torch.is_grad_enabled() and (gate.requires_grad or up.requires_grad):
        out: Tensor = _GatedSilu.apply(gate, up)
        return out
    if activation is F.silu and gradients.serves(gate, up):
        return gradients.gated(gate, up)
    return activation(gate) * up


class _GatedSilu(torch.autograd.Function):
    """SwiGLU that keeps its two inputs and bends the gate again in the backward: a third less is kept.

    For bf16 on a CPU, where native operators make one pass of each direction.
    """

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return gradients.gated(gate, up) if gradients.serves(gate, up) else F.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        if gradients.serves(d_outs[0], gate, up):
            return gradients.gated_backward(d_outs[0], gate, up)
        return torch.ops.aten.silu_backward(d_outs[0] * up, gate), d_outs[0] * F.silu(gate)
