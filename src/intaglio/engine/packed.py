"""Models that only generate: matrices joined and laid out as they are read fastest, chains of small operations fused.

A decoding step reads every weight once, so it is as fast as memory is read. `F.linear` on bf16 reads plain weights at
about half the speed of oneDNN's own blocked layout, and a few long products beat many short ones. Where there are
native operators, their layout replaces oneDNN's, and they also take the place of RMSNorm, rotary turns and SwiGLU,
each of which is a chain of small kernels. Weights of integers go through here too (see `engine.quantized`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio import native
from intaglio.engine.quantized import BITS, QuantizedLinear, Weights, can_quantize
from intaglio.models.decoder import Decoder
from intaglio.native.panels import to_panels
from intaglio.parts.attention import Attention
from intaglio.parts.context import AttentionContext
from intaglio.parts.feed_forward import FeedForward
from intaglio.parts.latent_attention import LatentAttention
from intaglio.parts.moe import Experts
from intaglio.parts.norm import RMSNorm
from intaglio.parts.position import Angles

__all__ = ["PackedExperts", "PackedLinear", "PanelLinear", "can_pack", "pack"]


class PackedLinear(nn.Module):
    """x W^T + b with W in oneDNN's layout; bf16 on the CPU only."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1))
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)"""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


class PanelLinear(nn.Module):
    """The same in the native operators' layout; bf16 on the CPU, an even number of inputs."""

    panels: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features = weight.shape[0]
        self.register_buffer("panels", to_panels(weight.detach()))
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)"""
        return native.linear(x, self.panels, self.bias, self.out_features)


def can_pack(model: Decoder) -> bool:
    """Whether this model, where it is and as it is, gains by packing without quantisation."""
    weight = model.embed_tokens.weight
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return False
    return native.available() or _onednn_has_bf16()


def _onednn_has_bf16() -> bool:
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(model: Decoder, weights: Weights | None = None) -> Decoder:
    """Packs every linear in place, joining those with one input; afterwards the model can neither train nor be saved.

    The embedding keeps its plain weights, also where the output matrix was tied to it. The router of experts, the
    matrix that latent attention takes apart, and what has too odd a number of inputs stay as they are.

    Args:
        model: in its dtype on its device; without `weights` one that `can_pack`.
        weights: None for the model's own; `int8` or `int4` from any dtype on any device. The output matrix is never
            under 8 bits: its errors go straight into the choice of the next token.
    """
    layout, output = _Layout(weights), model.lm_head
    for module in list(model.modules()):
        if isinstance(module, Attention) and layout.takes(module.q_proj.in_features):
            module.qkv_proj = layout.join(module.q_proj, module.k_proj, module.v_proj)
            module.q_proj = module.k_proj = module.v_proj = nn.Identity()  # type: ignore[assignment]
        if isinstance(module, FeedForward) and module.gate_proj and layout.takes(module.up_proj.in_features):
            module.gate_up_proj = layout.join(module.gate_proj, module.up_proj)
            module.gate_proj, module.up_proj = None, nn.Identity()  # type: ignore[assignment]
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                taken_apart = isinstance(module, LatentAttention) and name == "kv_b_proj"
                if not taken_apart and layout.takes(child.in_features):
                    setattr(module, name, layout.join(child, is_output=child is output))
            elif isinstance(child, Experts) and all(
                map(layout.takes, (child.up_proj.shape[2], child.up_proj.shape[1]))
            ):
                setattr(module, name, PackedExperts(child, layout.make))
    if native.available() and model.embed_tokens.weight.device.type == "cpu":
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                setattr(module, name, _fused(child))
    return model


@dataclass(frozen=True)
class _Layout:
    """How matrices are kept."""

    weights: Weights | None

    def takes(self, inputs: int) -> bool:
        """Whether a matrix of so many inputs can be kept so."""
        if self.weights is not None:
            return can_quantize(inputs, BITS[self.weights])
        return inputs % 2 == 0 or not native.available()

    def make(self, weight: Tensor, bias: Tensor | None = None, *, is_output: bool = False) -> nn.Module:
        """One matrix, (out, in)."""
        if self.weights is not None:
            return QuantizedLinear(weight, bias, 8 if is_output else BITS[self.weights])
        return PanelLinear(weight, bias) if native.available() else PackedLinear(weight, bias)

    def join(self, *linears: nn.Linear, is_output: bool = False) -> nn.Module:
        """Several with one input as one, the outputs one behind the other."""
        biased = any(one.bias is not None for one in linears)
        bias = torch.cat([_bias(one) for one in linears]) if biased else None
        return self.make(torch.cat([one.weight for one in linears]), bias, is_output=is_output)


def _bias(linear: nn.Linear) -> Tensor:
    return linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias


class PackedExperts(nn.Module):
    """See `parts.moe.Experts`; each expert's matrices are packed by themselves, and those nobody chose are not read."""

    def __init__(self, experts: Experts, make: Callable[[Tensor], nn.Module]) -> None:
        super().__init__()
        self.activation, self.gated = experts.activation, experts.gate_proj is not None
        first = experts.up_proj if experts.gate_proj is None else torch.cat((experts.gate_proj, experts.up_proj), dim=1)
        self.first = nn.ModuleList(make(matrix) for matrix in first)
        self.second = nn.ModuleList(make(matrix) for matrix in experts.down_proj)

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        """(rows, E) sorted by expert -> (rows, E); `ends` (X,) is where each expert's rows end."""
        parts = x.tensor_split(ends[:-1].cpu().long())
        made = [self._one(expert, part) for expert, part in enumerate(parts) if len(part)]
        return torch.cat(made)

    def _one(self, expert: int, x: Tensor) -> Tensor:
        inner = self.first[expert](x)
        if self.gated:
            gate, up = inner.chunk(2, dim=-1)
            inner = self.activation(gate) * up
        else:
            inner = self.activation(inner)
        made: Tensor = self.second[expert](inner)
        return made


def _fused(part: nn.Module) -> nn.Module:
    """What does the same with native operators, or the part itself."""
    if isinstance(part, RMSNorm):
        return _FusedNorm(part)
    if isinstance(part, Attention):
        return _FusedAttention(part)
    if isinstance(part, FeedForward) and part.gate_up_proj and part.activation is F.silu:
        return _FusedFeedForward(part)
    return part


class _FusedNorm(nn.Module):
    """RMSNorm in one pass over the row."""

    weight: Tensor

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.eps = norm.eps
        weight = norm.weight.detach()
        self.register_buffer("weight", (weight + 1 if norm.unit_offset else weight).float())

    def forward(self, x: Tensor) -> Tensor:
        return native.rms_norm(x, self.weight, self.eps)


class _FusedAttention(nn.Module):
    """Attention that turns its queries and keys where they stand."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor, angles: Angles | None, context: AttentionContext) -> Tensor:
        query, key, value = self.attention.project(x)
        if angles:
            native.rotate_(query, *angles)
            native.rotate_(key, *angles)
        attended = context.attend(self.attention.layer, query, key, value, self.attention.scores)
        return self.attention.merge(attended)


class _FusedFeedForward(nn.Module):
    """SwiGLU whose bend and product are one pass."""

    def __init__(self, feed_forward: FeedForward) -> None:
        super().__init__()
        assert feed_forward.gate_up_proj is not None
        self.gate_up_proj, self.down_proj = feed_forward.gate_up_proj, feed_forward.down_proj

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(native.silu_mul(self.gate_up_proj(x)))
