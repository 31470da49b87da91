"""Multi-head latent attention: all heads' keys and values are rebuilt from one small latent (DeepSeek-V2, 2.1).

Legend: B batch, T tokens, E features of the model, H heads, N and R the unrotated and rotated widths of a key,
V width of a value, C width of the latent.

Two forms give the same numbers. *Expanded* (training, prefill without a cache) rebuilds every head's key and value
and attends as usual. *Absorbed* (with a cache) keeps only the latent and the rotary key, C + R features per token:
the matrix that would expand keys is applied to the query instead, the one that would expand values to the result,
and what is left is multi-query attention whose values are the first C features of its keys.
"""

import torch
from torch import Tensor, nn

from intaglio.parts.context import AttentionContext, Scores
from intaglio.parts.norm import build_norm
from intaglio.parts.position import Angles, rotate
from intaglio.specs import LatentAttentionSpec

__all__ = ["LatentAttention"]


class LatentAttention(nn.Module):
    """See `LatentAttentionSpec`."""

    def __init__(self, spec: LatentAttentionSpec, hidden_size: int, layer: int) -> None:
        super().__init__()
        self.spec, self.layer = spec, layer
        self.scores = Scores(spec.softmax_scale)
        q_size = spec.num_heads * spec.qk_head_dim
        if spec.q_lora_rank:
            self.q_a_proj = nn.Linear(hidden_size, spec.q_lora_rank, bias=spec.bias)
            self.q_a_norm = build_norm(spec.norm, spec.q_lora_rank)
            self.q_b_proj = nn.Linear(spec.q_lora_rank, q_size, bias=False)
        else:
            self.q_proj = nn.Linear(hidden_size, q_size, bias=False)
        self.kv_a_proj = nn.Linear(hidden_size, spec.latent_width, bias=spec.bias)
        self.kv_a_norm = build_norm(spec.norm, spec.kv_lora_rank)
        expanded = spec.num_heads * (spec.qk_nope_head_dim + spec.v_head_dim)
        self.kv_b_proj = nn.Linear(spec.kv_lora_rank, expanded, bias=False)
        self.o_proj = nn.Linear(spec.num_heads * spec.v_head_dim, hidden_size, bias=spec.bias)

    def forward(self, x: Tensor, angles: Angles, context: AttentionContext) -> Tensor:
        """(B, T, E) -> (B, T, E)"""
        spec = self.spec
        query = self._query(x).unflatten(-1, (-1, spec.qk_head_dim)).transpose(1, 2)  # (B, H, T, N+R)
        q_nope, q_rope = query.split((spec.qk_nope_head_dim, spec.qk_rope_head_dim), dim=-1)
        latent, k_rope = self.kv_a_proj(x)[:, None].split((spec.kv_lora_rank, spec.qk_rope_head_dim), dim=-1)
        latent = self.kv_a_norm(latent)  # (B, 1, T, C)
        q_rope, k_rope = rotate(q_rope, angles), rotate(k_rope, angles)  # (B, H, T, R), (B, 1, T, R)
        form = self._absorbed if context.caches else self._expanded
        out = form(q_nope, q_rope, latent, k_rope, context)  # (B, H, T, V)
        return self.o_proj(out.transpose(1, 2).flatten(2))

    def _query(self, x: Tensor) -> Tensor:
        """(B, T, E) -> (B, T, H*(N+R))"""
        if self.spec.q_lora_rank:
            return self.q_b_proj(self.q_a_norm(self.q_a_proj(x)))
        return self.q_proj(x)

    def _expanded(
        self, q_nope: Tensor, q_rope: Tensor, latent: Tensor, k_rope: Tensor, context: AttentionContext
    ) -> Tensor:
        spec = self.spec
        rebuilt = self.kv_b_proj(latent[:, 0]).unflatten(-1, (spec.num_heads, -1)).transpose(1, 2)  # (B, H, T, N+V)
        k_nope, value = rebuilt.split((spec.qk_nope_head_dim, spec.v_head_dim), dim=-1)
        key = torch.cat((k_nope, k_rope.expand(-1, spec.num_heads, -1, -1)), dim=-1)
        return context.attend(self.layer, torch.cat((q_nope, q_rope), dim=-1), key, value, self.scores)

    def _absorbed(
        self, q_nope: Tensor, q_rope: Tensor, latent: Tensor, k_rope: Tensor, context: AttentionContext
    ) -> Tensor:
        spec = self.spec
        expand = self.kv_b_proj.weight.view(spec.num_heads, -1, spec.kv_lora_rank)  # (H, N+V, C)
        expand_key, expand_value = expand.split((spec.qk_nope_head_dim, spec.v_head_dim), dim=1)
        query = torch.cat((q_nope @ expand_key, q_rope), dim=-1)  # (B, H, T, C+R)
        key = torch.cat((latent, k_rope), dim=-1)  # (B, 1, T, C+R)
        out = context.attend(self.layer, query, key, spec.kv_lora_rank, self.scores)  # (B, H, T, C)
        return out @ expand_value.mT
