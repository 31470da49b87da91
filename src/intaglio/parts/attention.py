"""Attention: multi-head, grouped-query and multi-query, with or without a window.

Legend: B batch, T tokens, E features of the model, H query heads, K key/value heads, D head width.

    multi-head (K = H)      grouped-query (1 < K < H)     multi-query (K = 1)
    q q q q                 q q q q                       q q q q
    | | | |                 \\ / \\ /                       \\ \\ / /
    k k k k                  k   k                           k
"""

from torch import Tensor, nn

from intaglio.parts.context import AttentionContext, Scores
from intaglio.parts.latent_attention import LatentAttention
from intaglio.parts.norm import build_norm
from intaglio.parts.position import Angles, rotate
from intaglio.specs import AttentionSpec, LatentAttentionSpec

__all__ = ["Attention", "build_attention"]


class Attention(nn.Module):
    """See `AttentionSpec`."""

    def __init__(self, spec: AttentionSpec, hidden_size: int, layer: int) -> None:
        super().__init__()
        self.layer, self.width = layer, spec.width
        self.scores = Scores(spec.softmax_scale, spec.window, spec.softcap)
        q_size, kv_size = spec.num_heads * spec.width, spec.kv_heads * spec.width
        self.q_proj = nn.Linear(hidden_size, q_size, bias=spec.bias.q)
        self.k_proj = nn.Linear(hidden_size, kv_size, bias=spec.bias.k)
        self.v_proj = nn.Linear(hidden_size, kv_size, bias=spec.bias.v)
        self.o_proj = nn.Linear(q_size, hidden_size, bias=spec.bias.o)
        self.qkv_proj: nn.Module | None = None  # the first three as one product, where `engine.packed` joins them
        self.sizes = (q_size, kv_size, kv_size)
        self.q_norm = self.k_norm = None
        if spec.qk_norm:
            self.norm_heads = spec.qk_norm.over == "head"
            sizes = (spec.width, spec.width) if self.norm_heads else (q_size, kv_size)
            self.q_norm, self.k_norm = (build_norm(spec.qk_norm.norm, size) for size in sizes)

    def forward(self, x: Tensor, angles: Angles | None, context: AttentionContext) -> Tensor:
        """(B, T, E) -> (B, T, E)"""
        query, key, value = self.project(x)
        if angles:
            query, key = rotate(query, angles), rotate(key, angles)
        out = context.attend(self.layer, query, key, value, self.scores)  # (B, H, T, D)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, E) -> queries (B, H, T, D), keys and values (B, K, T, D)"""
        if self.qkv_proj:
            query, key, value = self.qkv_proj(x).split(self.sizes, dim=-1)
        else:
            query, key, value = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.q_norm and self.k_norm and not self.norm_heads:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key, value = (y.unflatten(-1, (-1, self.width)) for y in (query, key, value))  # (B, T, H, D)
        if self.q_norm and self.k_norm and self.norm_heads:
            query, key = self.q_norm(query), self.k_norm(key)
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


def build_attention(
    spec: AttentionSpec | LatentAttentionSpec, hidden_size: int, layer: int
) -> Attention | LatentAttention:
    """The attention that `spec` describes, as layer number `layer`."""
    if isinstance(spec, LatentAttentionSpec):
        return LatentAttention(spec, hidden_size, layer)
    return Attention(spec, hidden_size, layer)
