"""Operators of a training step: small chains in one pass, forward and backward, in bf16 on a CPU.

`serves` tells whether they take a tensor; whoever asks has a form in plain torch as well. What they keep for the
backward is what that form keeps, and their results are rounded once where its are rounded after every operation.

Legend: (..., E) features of the model, (..., I) intermediate features, B batch, H query heads, K key/value heads, T
or N tokens, D features of a head, R rows, V vocabulary; beside a matrix I inputs, O outputs, r rank.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from intaglio import native

__all__ = [
    "cross_entropy_",
    "documents_attention",
    "documents_attention_backward",
    "gated",
    "gated_backward",
    "low_rank_added",
    "low_rank_backward",
    "rms_norm",
    "rms_norm_backward",
    "rotated",
    "serves",
]


def serves(*tensors: Tensor) -> bool:
    """Whether all of them are bf16 on a CPU, and this process has the operators; a compiler makes its own."""
    if torch.compiler.is_compiling():
        return False
    return all(x.dtype == torch.bfloat16 and x.device.type == "cpu" for x in tensors) and native.available()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x * scale * weight (..., E), and the scale 1 / sqrt(mean(x^2) + eps) of each row, (..., 1) in fp32."""
    made: tuple[Tensor, Tensor] = torch.ops.intaglio.rms_norm_kept.default(x, weight, eps)
    return made


def rms_norm_backward(
    d_out: Tensor, x: Tensor, weight: Tensor, scale: Tensor, wanted: bool
) -> tuple[Tensor, Tensor | None]:
    """The gradients by x (..., E) and, if it is `wanted`, by the weight (E,) in fp32."""
    d_x, d_weight = torch.ops.intaglio.rms_norm_backward.default(d_out, x, weight, scale, wanted)
    return d_x, d_weight if wanted else None


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up, all (..., I)."""
    out: Tensor = torch.ops.intaglio.gated.default(gate, up)
    return out


def gated_backward(d_out: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients by gate and up, all (..., I)."""
    made: tuple[Tensor, Tensor] = torch.ops.intaglio.gated_backward.default(d_out, gate, up)
    return made


def rotated(x: Tensor, cos: Tensor, sin: Tensor, *, back: bool = False) -> Tensor:
    """`parts.position.rotate` where all features are turned, or its gradient `back`.

    Args:
        x: (B, H, T, D), D even and dense.
        cos, sin: (B or 1, 1, T, D).
        back: x is the gradient of what was turned.

    Returns:
        (B, H, T, D), which lies in memory as (B, T, H, D).
    """
    out: Tensor = torch.ops.intaglio.rotated.default(x, cos, sin, back)
    return out


def documents_attention(
    query: Tensor, key: Tensor, value: Tensor, lengths: Sequence[int], scale: float, hidden: Tensor | None = None
) -> Tensor:
    """Causal attention of documents that stand one behind the other, each by itself.

    Args:
        query: (1, H, T, D), dense in D.
        key, value: (1, K, T, D).
        lengths: of the documents, T in all; a head's scores of one, twice, should fit into the cache.
        scale: multiplies the scores; above 0.
        hidden: (T, 2) int32, keys of its own document that a token does not see, though they stand before it: from the
            one place to before the other, counted from the document's first token.

    Returns:
        (1, H, T, D), which lies in memory as (T, H, D).
    """
    out: Tensor = torch.ops.intaglio.documents_attention.default(query, key, value, lengths, scale, hidden)
    return out


def documents_attention_backward(
    d_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    scale: float,
    hidden: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by queries, keys and values, lying as the result does."""
    made: tuple[Tensor, Tensor, Tensor] = torch.ops.intaglio.documents_attention_backward.default(
        d_out, query, key, value, lengths, scale, hidden
    )
    return made


def low_rank_added(out: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """out + scale * B A x, and A x; what is multiplied is rounded to bf16.

    Args:
        out: (N, O), O and I multiples of 32.
        x: (N, I).
        a: (r, I), in fp32.
        b: (O, r), in fp32.
        scale: s.

    Returns:
        (N, O), and (N, r) for the backward.
    """
    made: tuple[Tensor, Tensor] = torch.ops.intaglio.low_rank_added.default(out, x, a, b, scale)
    return made


def low_rank_backward(
    d_out: Tensor, x: Tensor, low: Tensor, a: Tensor, b: Tensor, scale: float, d_x: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradients by A and B; that by x is added to `d_x` (N, I), if it is given. Arguments as above."""
    made: tuple[Tensor, Tensor] = torch.ops.intaglio.low_rank_backward.default(d_out, x, low, a, b, scale, d_x)
    return made


def cross_entropy_(logits: Tensor, targets: Tensor, z_loss: float) -> Tensor:
    """-log softmax(logits)[target] + z_loss * logsumexp^2 of each row; the logits become its gradient by them.

    Args:
        logits: (R, V), written over.
        targets: (R,).
        z_loss: see `training.objectives.chunked_loss`.

    Returns:
        (R,), in fp32.
    """
    losses: Tensor = torch.ops.intaglio.cross_entropy_.default(logits, targets, z_loss)
    return losses
