"""Models that only generate, on native operators: chains of small operations, and whole layers, in one call.

A step of few tokens spends as long on its way through Python and torch, some ten operators a layer, as on arithmetic.
A layer in one call has the bits of its operators one by one. Those are still there for what one call does not serve:
other norms, placements and feed-forwards, experts, latent attention, normed queries, contexts without block tables.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from intaglio import native
from intaglio.engine.paged import PagedContext
from intaglio.models.decoder import Decoder
from intaglio.parts.attention import Attention
from intaglio.parts.block import Block, Residual
from intaglio.parts.context import AttentionContext
from intaglio.parts.feed_forward import FeedForward
from intaglio.parts.norm import RMSNorm
from intaglio.parts.position import Angles

__all__ = ["FusedLayer", "fuse", "inside"]


def fuse(model: Decoder) -> None:
    """Puts native operators in the place of what they do, in a model whose matrices are packed for them."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            setattr(module, name, _fused(child))
    for number, block in enumerate(model.layers):
        if isinstance(block, Block) and _is_one_call(block):
            model.layers[number] = FusedLayer(block)


def inside(part: Any) -> Any:
    """What holds the parts that `part` has had before it was fused; itself, if it was not."""
    if isinstance(part, FusedLayer):
        return part.block
    return part.attention if isinstance(part, _FusedAttention) else part


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


def _is_one_call(block: Any) -> bool:
    """Whether `native.layer_` does what the block does, its parts being fused already."""
    attention = block.attention.attention if isinstance(block.attention, _FusedAttention) else None
    if attention is None or not isinstance(block.feed_forward, _FusedFeedForward) or block.parallel:
        return False
    plain = attention.q_norm is None and attention.width % 2 == 0
    norms = block.attention_norm, block.feed_forward_norm
    return plain and all(map(_is_pre, norms)) and all(map(_is_native, _matrices(block)))


def _is_pre(residual: Residual) -> bool:
    rest = residual.after, residual.outside
    return isinstance(residual.before, _FusedNorm) and all(isinstance(one, nn.Identity) for one in rest)


def _is_native(matrix: Any) -> bool:
    return hasattr(matrix, "panels")


def _matrices(block: Any) -> list[Any]:
    attention, feed_forward = block.attention.attention, block.feed_forward
    return [attention.qkv_proj, attention.o_proj, feed_forward.gate_up_proj, feed_forward.down_proj]


class FusedLayer(nn.Module):
    """A block in one call, where keys and values are paged.

    Args:
        block: pre-norm, its parts fused and its matrices in panels.
    """

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.block, self._attention = block, block.attention.attention
        norms, matrices = (block.attention_norm.before, block.feed_forward_norm.before), _matrices(block)
        of_matrix = [
            (one.panels, getattr(one, "scales", None), getattr(one, "offsets", None), one.bias) for one in matrices
        ]
        self._weights = [*(norm.weight for norm in norms), *(part for parts in of_matrix for part in parts)]
        scores, inner = self._attention.scores, matrices[2].out_features // 2
        self._sizes = self._attention.sizes[0] // self._attention.width, inner, scores.window or 0
        self._numbers = *(norm.eps for norm in norms), scores.scale, scores.softcap or 0.0

    def forward(self, x: Tensor, angles: Angles | None, context: AttentionContext) -> Tensor:
        """(1, N, E) -> (1, N, E), in place where it is one call"""
        layer, scores = self._attention.layer, self._attention.scores
        paged = context.walk(layer, x, scores) if isinstance(context, PagedContext) else None
        if paged is None or angles is None:
            out: Tensor = self.block(x, angles, context)
            return out
        sizes = *self._sizes, paged.block_size
        native.layer_(x, self._weights, angles, paged.kept, paged.tables, sizes, self._numbers)
        return x
