"""Models that only generate: matrices joined and laid out as they are read fastest, chains of small operations fused.

A decoding step reads every weight once, so it is as fast as memory is read. `F.linear` on bf16 reads plain weights at
about half the speed of oneDNN's own blocked layout, and a few long products beat many short ones. Where there are
native operators, their layout replaces oneDNN's, and whole layers become one of them (see `engine.fused`); but not for
many rows at a time on a CPU with matrix units, which oneDNN's products use better. Weights of integers go through here
too (see `engine.quantized`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from intaglio import native
from intaglio.engine.fused import fuse, inside
from intaglio.engine.quantized import BITS, QuantizedLinear, Weights, can_quantize
from intaglio.models.decoder import Decoder
from intaglio.native.panels import to_panels
from intaglio.parts.attention import Attention
from intaglio.parts.feed_forward import FeedForward
from intaglio.parts.latent_attention import LatentAttention
from intaglio.parts.moe import Experts

__all__ = ["PackedExperts", "PackedLinear", "PanelLinear", "can_pack", "pack", "part_of"]

_FEW = 8
"""Sequences decoded together up to which the native layout is the faster one. Tokens a second of SmolLM2 from it (from
plain weights), one thread with AMX: 23 (9) of 1 sequence, 68 (43) of 4, 101 (63) of 8, 107 (110) of 16, 105 (161) of
32."""

_QKV, _GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")


class PackedLinear(nn.Module):
    """x W^T + b with W in oneDNN's layout; bf16 on the CPU only.

    Args:
        weight, bias: (out, in), and (out,) or None.
        rows: of x, which the layout is made for; others are right too.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int = 1) -> None:
        super().__init__()
        self.out_features = weight.shape[0]
        self.register_buffer("weight", torch.ops.mkldnn._reorder_linear_weight(weight.detach(), rows))
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)"""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")


class PanelLinear(nn.Module):
    """The same in the native operators' layout; bf16 on the CPU, an even number of inputs.

    Args:
        weight, bias: (out, in), and (out,) or None.
        wide: whether the result stays in fp32.
    """

    panels: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, *, wide: bool = False) -> None:
        super().__init__()
        self.out_features, self._wide = weight.shape[0], wide
        self.register_buffer("panels", to_panels(weight.detach(), 2))
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)"""
        return native.linear(x, self.panels, self.bias, self.out_features, wide=self._wide)


def can_pack(model: Decoder) -> bool:
    """Whether this model, where it is and as it is, gains by packing without quantisation."""
    weight = model.embed_tokens.weight
    if weight.device.type != "cpu" or weight.dtype != torch.bfloat16:
        return False
    return native.available() or _onednn_has_bf16()


def _onednn_has_bf16() -> bool:
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _has_matrix_units() -> bool:
    return _onednn_has_bf16() and bool(torch.cpu._is_amx_tile_supported())


def pack(model: Decoder, weights: Weights | None = None, *, rows: int = 1) -> Decoder:
    """Packs every linear in place, joining those with one input; afterwards the model can neither train nor be saved.

    The embedding keeps its plain weights, also where the output matrix was tied to it. The router of experts, the
    matrix that latent attention takes apart, and what has too odd a number of inputs stay as they are.

    Args:
        model: in its dtype on its device; without `weights` one that `can_pack`.
        weights: None for the model's own; `int8` or `int4` from any dtype on any device. The output matrix is never
            under 8 bits: its errors go straight into the choice of the next token. For the same reason native operators
            leave logits in fp32: in bf16 the likeliest two may be equal.
        rows: sequences that are mostly decoded together.
    """
    layout, output = _Layout(weights, rows), model.lm_head
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
    if layout.native and model.embed_tokens.weight.device.type == "cpu":
        fuse(model)
    return model


def part_of(model: nn.Module, path: str) -> tuple[nn.Module, slice | None]:
    """What stands for a part of a model that may be packed: itself, or what it was joined into.

    Args:
        model: packed or not.
        path: of the part before.

    Returns:
        the part, and where its outputs are among those of several; None where there are no others.
    """
    *outer, name = path.split(".")
    owner: Any = model
    for word in outer:
        owner = inside(getattr(owner, word))
    if name in _QKV and getattr(owner, "qkv_proj", None):
        ends = [0, *accumulate(owner.sizes)]
        return owner.qkv_proj, slice(ends[_QKV.index(name)], ends[_QKV.index(name) + 1])
    if name in _GATE_UP and getattr(owner, "gate_up_proj", None):
        size = owner.gate_up_proj.out_features // 2
        return owner.gate_up_proj, slice(0, size) if name == _GATE_UP[0] else slice(size, 2 * size)
    part: nn.Module = getattr(owner, name)
    return part, None


@dataclass(frozen=True)
class _Layout:
    """How matrices are kept."""

    weights: Weights | None
    rows: int

    @property
    def native(self) -> bool:
        """Whether in a layout of native operators."""
        few = self.rows <= _FEW or self.weights is not None or not _has_matrix_units()
        return native.available() and few

    def takes(self, inputs: int) -> bool:
        """Whether a matrix of so many inputs can be kept so."""
        if self.weights is not None:
            return can_quantize(inputs, BITS[self.weights])
        return inputs % 2 == 0 or not self.native

    def make(self, weight: Tensor, bias: Tensor | None = None, *, is_output: bool = False) -> nn.Module:
        """One matrix, (out, in)."""
        if self.weights is not None:
            return QuantizedLinear(weight, bias, 8 if is_output else BITS[self.weights], wide=is_output)
        return PanelLinear(weight, bias, wide=is_output) if self.native else PackedLinear(weight, bias, self.rows)

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
