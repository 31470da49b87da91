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

__all__ = ["Attention", "Projections", "build_attention"]


class Projections(nn.Module):
    """The four projections of an attention and the norms of its queries and keys: what all kinds of it share."""

    def __init__(self, spec: AttentionSpec, hidden_size: int, layer: int) -> None:
        super().__init__()
        self.layer, self.width = layer, spec.width
        self.scores = Scores(spec.softmax_scale, spec.window, spec.softcap)
        q_size, kv_size = spec.num_heads * spec.width, spec.kv_heads * spec.width
        self.q_proj = nn.Linear(hidden_size, q_size, bias=spec.bias.q)
        self.k_proj = nn.Linear(hidden_size, kv_size, bias=spec.bias.k)
        self.v_proj = nn.Linear(hidden_size, kv_size, bias=spec.bias.v)
        self.o_proj = nn.Linear(q_size, hidden_size, bias=spec.bias.o)
        self.sizes = (q_size, kv_size, kv_size)
        self.q_norm = self.k_norm = None
        self.norm_heads = spec.qk_norm is not None and spec.qk_norm.over == "head"
        if spec.qk_norm:
            sizes = (spec.width, spec.width) if self.norm_heads else (q_size, kv_size)
            self.q_norm, self.k_norm = (build_norm(spec.qk_norm.norm, size) for size in sizes)

    def split(self, x: Tensor, norm: nn.Module | None = None) -> Tensor:
        """(B, T, H*D) -> (B, H, T, D), normed as a whole or head by head"""
        if norm and not self.norm_heads:
            x = norm(x)
        x = x.unflatten(-1, (-1, self.width))  # (B, T, H, D)
        if norm and self.norm_heads:
            x = norm(x)
        return x.transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        """(B, H, T, D) -> (B, T, E)"""
        return self.o_proj(heads.transpose(1, 2).flatten(2))


class Attention(Projections):
    """See `AttentionSpec`."""

    def __init__(self, spec: AttentionSpec, hidden_size: int, layer: int) -> None:
        super().__init__(spec, hidden_size, layer)
        self.qkv_proj: nn.Module | None = None  # the first three as one product, where `engine.packed` joins them

    def forward(self, x: Tensor, angles: Angles | None, context: AttentionContext) -> Tensor:
        """(B, T, E) -> (B, T, E)"""
        query, key, value = self.project(x)
        if angles:
            query, key = rotate(query, angles), rotate(key, angles)
        return self.merge(context.attend(self.layer, query, key, value, self.scores))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, T, E) -> queries (B, H, T, D), keys and values (B, K, T, D)"""
        if self.qkv_proj:
            query, key, value = self.qkv_proj(x).split(self.sizes, dim=-1)
        else:
            query, key, value = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.split(query, self.q_norm), self.split(key, self.k_norm), self.split(value)


def build_attention(
    spec: AttentionSpec | LatentAttentionSpec, hidden_size: int, layer: int
) -> Attention | LatentAttention:
    """The attention that `spec` describes, as layer number `layer`."""
    if isinstance(spec, LatentAttentionSpec):
        return LatentAttention(spec, hidden_size, layer)
    return Attention(spec, hidden_size, layer)
