"""Norms: LayerNorm, and RMSNorm, which took the mean away. Statistics in fp32 whatever the dtype."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.specs import LayerNormSpec, NormSpec

__all__ = ["LayerNorm", "RMSNorm", "build_norm"]


class LayerNorm(nn.Module):
    """See `LayerNormSpec`; over the last dimension, of `size` features."""

    def __init__(self, size: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(..., size) -> (..., size)"""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """See `RMSNormSpec`; over the last dimension, of `size` features."""

    def __init__(self, size: int, eps: float, unit_offset: bool) -> None:
        super().__init__()
        self.eps = eps
        self.unit_offset = unit_offset
        self.weight = nn.Parameter(torch.zeros(size) if unit_offset else torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """(..., size) -> (..., size)"""
        weight = self.weight + 1 if self.unit_offset else self.weight
        if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
            out: Tensor = _LeanRMSNorm.apply(x, weight, self.eps)
            return out
        return F.rms_norm(x, self.weight.shape, weight, self.eps)


class _LeanRMSNorm(torch.autograd.Function):
    """The same, keeping the row and one number for the backward.

    On a CPU `F.rms_norm` is made of smaller operations that keep two fp32 copies of the row: 41 % of SmolLM2's
    activations in bf16, and a third more time.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)  # (..., 1)
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        row = x.to(scale.dtype) * scale  # normalised
        d_out = gradients[0].to(scale.dtype)
        d_weight = (d_out * row).flatten(0, -2).sum(dim=0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        d_row = d_out * weight
        d_x = (d_row - row * (d_row * row).mean(dim=-1, keepdim=True)).mul_(scale).to(x.dtype)
        return d_x, d_weight, None


def build_norm(spec: NormSpec, size: int) -> nn.Module:
    """The norm that `spec` describes, over `size` features."""
    if isinstance(spec, LayerNormSpec):
        return LayerNorm(size, spec.eps, spec.bias)
    return RMSNorm(size, spec.eps, spec.unit_offset)
