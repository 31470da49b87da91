"""Causal attention of short documents in bf16 on a CPU: the fused kernel forward, plain products backward.

Legend: H query heads, K key/value heads, G = H / K, L tokens, D head width.

The fused backward walks over tiles of keys and queries, which pays for long sequences. At the lengths of chats the
scores of a document fit into the cache and the textbook's products are faster: forward and backward together take half
the time at 64 and 128 tokens, 0.7 of it at 256 and 384, more of it from 512 on; in fp32 they never win. Grouped heads
are one product with G L rows, so no key or value is copied.

Where there are native operators, all documents of a row are one call each way, which takes another 0.4 of that time:
scores and their softmax stay in the cache, and what stands behind a query is not looked at.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from intaglio.native import gradients
from intaglio.planning.kept_attention import SHORT_DOCUMENT

__all__ = ["documents_attention", "fit_together", "fits", "short_causal_attention", "suit_together", "suits"]


def suits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether a gradient is wanted, and `short_causal_attention` is the faster way to it."""
    wanted = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    return wanted and fits(query, value)


def fits(query: Tensor, value: Tensor) -> bool:
    """Whether `short_causal_attention` takes these, and a gradient through them would be made faster by it."""
    here = query.device.type == "cpu" and query.dtype == torch.bfloat16
    return here and query.shape[2] <= SHORT_DOCUMENT and query.shape[-1] == value.shape[-1]


def suit_together(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float) -> bool:
    """Whether `documents_attention` may take a row of documents of these lengths; arguments as there."""
    first = max(lengths)
    wanted = suits(*(x[:, :, :first] for x in (query, key, value)))
    return wanted and fit_together(query, key, value, lengths, scale)


def fit_together(query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float) -> bool:
    """Whether it could, with a gradient or without."""
    first = max(lengths)
    served = scale > 0 and fits(query[:, :, :first], value) and gradients.serves(query, key, value)
    return served and all(x.stride(-1) == 1 for x in (query, key, value))


def documents_attention(
    query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float, hidden: Tensor | None = None
) -> Tensor:
    """`short_causal_attention` of each of some documents, one behind the other; where `suit_together` says so.

    Args:
        query: (1, H, T, D).
        key, value: (1, K, T, D).
        lengths: of the documents.
        scale: multiplies the scores.
        hidden: what else is not seen, see `native.gradients.documents_attention`.

    Returns:
        (1, H, T, D).
    """
    out: Tensor = _DocumentsAttention.apply(query, key, value, lengths, scale, hidden)
    return out


def short_causal_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None = None
) -> Tensor:
    """softmax(Q K^T * scale) V, each token over itself and what stands before it.

    Args:
        query: (1, H, L, D).
        key, value: (1, K, L, D).
        scale: multiplies the scores.
        bias: (L, L), added to them in place of what hides the tokens that stand behind.

    Returns:
        (1, H, L, D).
    """
    if bias is None and suit_together(query, key, value, [query.shape[2]], scale):
        return documents_attention(query, key, value, [query.shape[2]], scale)
    out: Tensor = _ShortAttention.apply(query, key, value, scale, bias)
    return out


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, bias: Tensor | None) -> Tensor:
        out, _ = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, bias is None, attn_mask=bias, scale=scale
        )
        ctx.save_for_backward(query, key, value, bias)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, bias = ctx.saved_tensors
        shape, (_, kv_heads, _, width) = query.shape, key.shape
        q, d_out = (x.reshape(kv_heads, -1, width) for x in (query, gradients[0]))  # (K, G L, D)
        k, v = key[0], value[0]  # (K, L, D)
        weights = torch.softmax(_scores(q, k, ctx.scale, bias), dim=-1)  # (K, G L, L)
        d_value = weights.mT @ d_out
        d_scores = torch._softmax_backward_data(d_out @ v.mT, weights, -1, weights.dtype).mul_(ctx.scale)
        return (d_scores @ k).view(shape), (d_scores.mT @ q)[None], d_value[None], None, None


class _DocumentsAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: Sequence[int],
        scale: float,
        hidden: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, hidden)
        ctx.lengths, ctx.scale = lengths, scale
        return gradients.documents_attention(query, key, value, lengths, scale, hidden)

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, hidden = ctx.saved_tensors
        slopes = gradients.documents_attention_backward(d_outs[0], query, key, value, ctx.lengths, ctx.scale, hidden)
        return *slopes, None, None, None


def _scores(query: Tensor, key: Tensor, scale: float, bias: Tensor | None) -> Tensor:
    """(K, G L, D) and (K, L, D) -> (K, G L, L), minus infinity where the key is hidden from the query."""
    scores = torch.bmm(query, key.mT).mul_(scale)
    length = key.shape[1]
    if bias is None:
        bias = torch.full((length, length), float("-inf"), dtype=scores.dtype).triu_(1)
    scores.unflatten(1, (-1, length)).add_(bias)
    return scores
