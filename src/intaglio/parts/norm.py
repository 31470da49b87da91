"""Norms: LayerNorm, and RMSNorm, which took the mean away. Statistics in fp32 whatever the dtype."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio.native import gradients
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
        if gradients.serves(x, weight):
            return gradients.rms_norm(x, weight, self.eps)[0]
        return F.rms_norm(x, self.weight.shape, weight, self.eps)


class _LeanRMSNorm(torch.autograd.Function):
    """The same, keeping the row and one number for the backward.

    On a CPU `F.rms_norm` is made of smaller operations that keep two fp32 copies of the row: 41 % of SmolLM2's
    activations in bf16, and a third more time. Native operators make one pass over the row of each direction.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out, scale = (gradients.rms_norm if gradients.serves(x, weight) else _normed)(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return out

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        slopes = gradients.rms_norm_backward if gradients.serves(x, weight) else _normed_backward
        d_x, d_weight = slopes(d_outs[0], x, weight, scale, ctx.needs_input_grad[1])
        return d_x, None if d_weight is None else d_weight.to(weight.dtype), None


def _normed(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The row times its scale and the weight, and the scale (..., 1)."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale).mul_(weight).to(x.dtype), scale


def _normed_backward(
    d_out: Tensor, x: Tensor, weight: Tensor, scale: Tensor, wanted: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients by x and, if it is `wanted`, by the weight."""
    row = x.to(scale.dtype) * scale  # normalised
    wide = d_out.to(scale.dtype)
    d_weight = (wide * row).flatten(0, -2).sum(dim=0) if wanted else None
    d_row = wide * weight
    return (d_row - row * (d_row * row).mean(dim=-1, keepdim=True)).mul_(scale).to(x.dtype), d_weight


def build_norm(spec: NormSpec, size: int) -> nn.Module:
    """The norm that `spec` describes, over `size` features."""
    if isinstance(spec, LayerNormSpec):
        return LayerNorm(size, spec.eps, spec.bias)
    return RMSNorm(size, spec.eps, spec.unit_offset)
