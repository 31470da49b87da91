"""Positions as tensors: the learned table, the sinusoids, and the rotary angles.

Legend: B batch, T tokens, E features of the model, R features of a head that are turned.
Nothing here keeps a buffer: angles are made from the spec, so a model built on the meta device has none to lose.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.native import gradients
from intaglio.specs import (
    AttentionSpec,
    DynamicScaling,
    LatentAttentionSpec,
    LearnedPositionsSpec,
    LinearScaling,
    Llama3Scaling,
    RotarySpec,
    SinusoidalPositionsSpec,
    YarnScaling,
)

__all__ = ["Angles", "LearnedPositions", "Rotaries", "Rotary", "SinusoidalPositions", "build_positions", "rotate"]

Angles = tuple[Tensor, Tensor]


class LearnedPositions(nn.Module):
    """One learned vector per position."""

    def __init__(self, max_positions: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(max_positions, size) * 0.02)

    def forward(self, positions: Tensor) -> Tensor:
        """(B, T) -> (B, T, E)"""
        return self.weight[positions]


class SinusoidalPositions(nn.Module):
    """Fixed sinusoids; bounded, unique, and relative by the addition theorem."""

    def __init__(self, size: int, layout: str) -> None:
        super().__init__()
        self.size, self.layout = size, layout

    def forward(self, positions: Tensor) -> Tensor:
        """(B, T) -> (B, T, E)"""
        even = torch.arange(0, self.size, 2, device=positions.device, dtype=torch.float32)
        angles = positions[..., None] * torch.exp(even * (-math.log(10000.0) / self.size))  # (B, T, E/2)
        waves = angles.sin(), angles.cos()
        if self.layout == "halves":
            return torch.cat(waves, dim=-1)
        return torch.stack(waves, dim=-1).flatten(-2)


def build_positions(
    spec: LearnedPositionsSpec | SinusoidalPositionsSpec, max_positions: int, size: int
) -> LearnedPositions | SinusoidalPositions:
    """The module that turns positions into vectors to be added to the embeddings."""
    if isinstance(spec, LearnedPositionsSpec):
        return LearnedPositions(max_positions, size)
    return SinusoidalPositions(size, spec.layout)


class Rotary:
    """The angles of one `RotarySpec` over heads of `head_dim` features; shared by all layers that use it."""

    def __init__(self, spec: RotarySpec, head_dim: int) -> None:
        self.spec = spec
        self.dim = spec.dim or head_dim
        scaling = spec.scaling
        self.factor = scaling.rotary_factor if isinstance(scaling, YarnScaling) else 1.0

    def angles(self, positions: Tensor, planned: Tensor | None, dtype: torch.dtype) -> Angles:
        """cos and sin for `rotate`.

        Args:
            positions: (B, T).
            planned: (B, 1) or (B, T), the length each row, or each token's sequence, was planned for; only dynamic
                scaling looks at it.
            dtype: of the result; the angles themselves are fp32.

        Returns:
            cos and sin, each (B, 1, T, R), to broadcast over heads; the sign of the half split stands in sin.
        """
        angles = positions[..., None].float() * self.frequencies(planned, positions.device)  # (B, T, R/2)
        cos, sin = angles.cos() * self.factor, angles.sin() * self.factor
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)  # (B, T, R)
        return cos[:, None].to(dtype), sin[:, None].to(dtype)

    def frequencies(self, planned: Tensor | None = None, device: torch.device | None = None) -> Tensor:
        """Radians per position of each pair: (R/2,), or (B, 1 or T, R/2) where the base depends on the length."""
        scaling = self.spec.scaling
        exponents = torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) / self.dim
        if isinstance(scaling, DynamicScaling) and planned is not None:
            return 1.0 / self._dynamic_base(scaling, planned)[..., None] ** exponents
        frequencies = 1.0 / self.spec.theta**exponents
        if isinstance(scaling, LinearScaling):
            return frequencies / scaling.factor
        if isinstance(scaling, YarnScaling):
            return self._yarn(scaling, frequencies)
        if isinstance(scaling, Llama3Scaling):
            return _llama3(scaling, frequencies)
        return frequencies

    def _dynamic_base(self, scaling: DynamicScaling, planned: Tensor) -> Tensor:
        trained = scaling.original_max_position_embeddings
        length = planned.clamp(min=trained).float()
        stretch = scaling.factor * length / trained - (scaling.factor - 1)
        return self.spec.theta * stretch ** (self.dim / (self.dim - 2))

    def _yarn(self, scaling: YarnScaling, frequencies: Tensor) -> Tensor:
        """Interpolated below the ramp, kept above it (equation 23); the ramp lies between two rotation counts."""
        low, high = self._yarn_dim(scaling, scaling.beta_fast), self._yarn_dim(scaling, scaling.beta_slow)
        if scaling.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        pair = torch.arange(self.dim // 2, device=frequencies.device, dtype=torch.float32)
        ramp = ((pair - low) / (high - low if high != low else 0.001)).clamp(0, 1)
        return frequencies / scaling.factor * ramp + frequencies * (1 - ramp)

    def _yarn_dim(self, scaling: YarnScaling, rotations: float) -> float:
        """The pair that turns `rotations` times over the trained length."""
        wavelength = scaling.original_max_position_embeddings / (rotations * 2 * math.pi)
        return self.dim * math.log(wavelength) / (2 * math.log(self.spec.theta))


def _llama3(scaling: Llama3Scaling, frequencies: Tensor) -> Tensor:
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clamp(0, 1)
    return (1 - keep) * frequencies / scaling.factor + keep * frequencies


class Rotaries:
    """The rotary positions of a stack of layers: one pair of cos and sin for each kind, shared by its layers."""

    def __init__(self, attentions: Sequence[AttentionSpec | LatentAttentionSpec]) -> None:
        self._keys = [_rotary_key(attention) for attention in attentions]
        self._kinds = {key: Rotary(*key) for key in self._keys if key}

    def __bool__(self) -> bool:
        return bool(self._kinds)

    def angles(self, positions: Tensor, planned: Tensor | None, dtype: torch.dtype) -> list[Angles | None]:
        """One entry a layer, None where it turns nothing; arguments as of `Rotary.angles`."""
        made = {key: kind.angles(positions, planned, dtype) for key, kind in self._kinds.items()}
        return [made[key] if key else None for key in self._keys]


def _rotary_key(attention: AttentionSpec | LatentAttentionSpec) -> tuple[RotarySpec, int] | None:
    if isinstance(attention, LatentAttentionSpec):
        return attention.rope, attention.qk_rope_head_dim
    return (attention.rope, attention.width) if attention.rope else None


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Turns the first R features of each head; the rest pass. x and the result are (B, H, T, D)."""
    cos, sin = angles
    dim = cos.shape[-1]
    if dim < x.shape[-1]:
        return torch.cat((rotate(x[..., :dim], angles), x[..., dim:]), dim=-1)
    if gradients.serves(x, cos, sin) and x.stride(-1) == 1:
        out: Tensor = _Rotated.apply(x, cos, sin)
        return out
    return x * cos + x.roll(dim // 2, dims=-1) * sin


class _Rotated(torch.autograd.Function):
    """The rotation in one pass, and the transposed one in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return gradients.rotated(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        d_out = d_outs[0] if d_outs[0].stride(-1) == 1 else d_outs[0].contiguous()
        return gradients.rotated(d_out, *ctx.saved_tensors, back=True), None, None
