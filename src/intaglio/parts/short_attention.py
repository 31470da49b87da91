"""Causal attention of a short document in bf16 on a CPU: the fused kernel forward, plain products backward.

Legend: H query heads, K key/value heads, G = H / K, L tokens, D head width.

The fused backward walks over tiles of keys and queries, which pays for long sequences. At the lengths of chats the
scores of a document fit into the cache and the textbook's products are faster: forward and backward together take half
the time at 64 and 128 tokens, 0.7 of it at 256 and 384, more of it from 512 on; in fp32 they never win. Grouped heads
are one product with G L rows, so no key or value is copied.
"""

from typing import Any

import torch
from torch import Tensor

from intaglio.planning.activations import SHORT_DOCUMENT

__all__ = ["short_causal_attention", "suits"]


def suits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether a gradient is wanted, and `short_causal_attention` is the faster way to it."""
    wanted = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    here = query.device.type == "cpu" and query.dtype == torch.bfloat16
    return wanted and here and 1 < query.shape[2] <= SHORT_DOCUMENT and query.shape[-1] == value.shape[-1]


def short_causal_attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """softmax(Q K^T * scale) V, each token over itself and what stands before it.

    Args:
        query: (1, H, L, D).
        key, value: (1, K, L, D).
        scale: multiplies the scores.

    Returns:
        (1, H, L, D).
    """
    out: Tensor = _ShortAttention.apply(query, key, value, scale)
    return out


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        out, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, True, attn_mask=None, scale=scale
        )
        ctx.save_for_backward(query, key, value)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        shape, (_, kv_heads, _, width) = query.shape, key.shape
        q, d_out = (x.reshape(kv_heads, -1, width) for x in (query, gradients[0]))  # (K, G L, D)
        k, v = key[0], value[0]  # (K, L, D)
        weights = torch.softmax(_scores(q, k, ctx.scale), dim=-1)  # (K, G L, L)
        d_value = weights.mT @ d_out
        d_scores = torch._softmax_backward_data(d_out @ v.mT, weights, -1, weights.dtype).mul_(ctx.scale)
        return (d_scores @ k).view(shape), (d_scores.mT @ q)[None], d_value[None], None


def _scores(query: Tensor, key: Tensor, scale: float) -> Tensor:
    """(K, G L, D) and (K, L, D) -> (K, G L, L), minus infinity where the key stands after the query."""
    scores = torch.bmm(query, key.mT).mul_(scale)
    length = key.shape[1]
    scores.unflatten(1, (-1, length)).add_(torch.full((length, length), float("-inf"), dtype=scores.dtype).triu_(1))
    return scores
