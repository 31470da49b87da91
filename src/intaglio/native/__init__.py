"""Operators in C++ for a CPU: attention that walks block tables, products of few rows, and small chains in one pass.

They are an equal of plain torch, faster and nothing else. `available` tells whether this process has them; where it
does not, a build starts beside it (see `native.library`) and the next process will. No row's bits depend on the rows
beside it, on how a prompt was cut into chunks, or on the number of threads.

Legend: N new tokens of S sequences, H query heads, K key/value heads, D and Dv widths of keys and values.
"""

import torch
from torch import Tensor

from intaglio.native.library import available

__all__ = ["available", "linear", "paged_attention", "rms_norm", "rotate_", "silu_mul"]

_DTYPES = (torch.float32, torch.bfloat16)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    query_starts: Tensor,
    lengths: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    block_size: int,
) -> Tensor | None:
    """Causal attention of the last tokens of some sequences over all of each that may be seen.

    Args:
        query: (N, H, D), sequence behind sequence.
        key_cache: (slots, K, D); the new tokens' keys are in it.
        value_cache: (slots, K, Dv).
        block_table: (S, blocks) int32: token p of a sequence stands in slot p % block_size of its block
            p // block_size. Blocks wholly behind the window are not looked at.
        query_starts: (S + 1,) int32: where each sequence's queries start, and N.
        lengths: (S,) int32: tokens of each sequence, the new ones included.
        scale, window, softcap: see `parts.context.Scores`.
        block_size: tokens in a block.

    Returns:
        (N, H, Dv); None where there is no operator for this device, dtype or width.
    """
    served = query.dtype in _DTYPES and query.dtype == key_cache.dtype == value_cache.dtype
    if not served or query.device.type != "cpu" or query.shape[-1] % 2 or not available():
        return None
    if query.stride(-1) != 1:
        query = query.contiguous()
    out: Tensor = torch.ops.intaglio.paged_attention.default(
        query,
        key_cache,
        value_cache,
        block_table,
        query_starts,
        lengths,
        scale,
        window or 0,
        softcap or 0.0,
        block_size,
    )
    return out


def linear(
    x: Tensor,
    panels: Tensor,
    bias: Tensor | None,
    out_features: int,
    scales: Tensor | None = None,
    offsets: Tensor | None = None,
) -> Tensor:
    """x W^T + b, summed in fp32.

    Args:
        x: (..., in), fp32 or bf16.
        panels: W as `panels.to_panels` lays it out: bf16, int8, or uint8 with two 4-bit integers in a byte.
        bias: (out,) in fp32, or None.
        out_features: outputs; the last panel may have fewer than 32.
        scales: (panels, groups, 32) in bf16, what the integers of each group of inputs are multiplied by; or None.
        offsets: the same, what is then added to them; or None.

    Returns:
        (..., out).
    """
    out: Tensor = torch.ops.intaglio.linear.default(x, panels, scales, offsets, bias, out_features)
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; `weight` in fp32, x in fp32 or bf16."""
    out: Tensor = torch.ops.intaglio.rms_norm.default(x, weight, eps)
    return out


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """`parts.position.rotate` in place: x (B, H, T, D), cos and sin (B or 1, 1, T, R), all of one dtype."""
    torch.ops.intaglio.rotate_.default(x, cos, sin)


def silu_mul(gate_up: Tensor) -> Tensor:
    """(..., 2 * I), a gate and behind it what it multiplies -> (..., I): silu(gate) * up."""
    out: Tensor = torch.ops.intaglio.silu_mul.default(gate_up)
    return out
