"""Norms: LayerNorm, and RMSNorm, which took the mean away. Statistics in fp32 whatever the dtype."""

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
        return F.rms_norm(x, self.weight.shape, weight, self.eps)


def build_norm(spec: NormSpec, size: int) -> nn.Module:
    """The norm that `spec` describes, over `size` features."""
    if isinstance(spec, LayerNormSpec):
        return LayerNorm(size, spec.eps, spec.bias)
    return RMSNorm(size, spec.eps, spec.unit_offset)
