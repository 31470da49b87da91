"""Operators in C++ for a CPU: attention that walks block tables, products of few rows, and small chains in one pass.

They do what plain torch does, only faster (`linear` alone rounds some of its inputs, and says so). `available` tells
whether this process has them; where it does not, a build starts beside it (see `native.library`) and the next process
will. No row's bits depend on the rows beside it, on how a prompt was cut into chunks, or on the number of threads.

Legend: N new tokens of S sequences, H query heads, K key/value heads, D and Dv widths of keys and values.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from intaglio.native.library import available

__all__ = [
    "available",
    "layer_",
    "linear",
    "nf4_dequantize",
    "nf4_quantize",
    "nf4_scales",
    "paged_attention",
    "rms_norm",
    "rotate_",
    "silu_mul",
]

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
    *,
    wide: bool = False,
) -> Tensor:
    """x W^T + b, summed in fp32; inputs in bf16 are rounded to 8 bits where the weights are integers.

    Args:
        x: (..., in), fp32 or bf16.
        panels: W as `panels.to_panels` lays it out: bf16, int8, or uint8 with two 4-bit integers in a byte.
        bias: (out,) in fp32, or None.
        out_features: outputs; the last panel may have fewer than 32.
        scales: (panels, groups, 32) in bf16, what the integers of each group of inputs are multiplied by; or None.
        offsets: the same, what is then added to them; or None.
        wide: whether the result stays in fp32.

    Returns:
        (..., out), in x's dtype or in fp32.
    """
    out: Tensor = torch.ops.intaglio.linear.default(x, panels, scales, offsets, bias, out_features, wide)
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


def layer_(
    x: Tensor,
    weights: Sequence[Tensor | None],
    angles: tuple[Tensor, Tensor],
    kept: tuple[Tensor, Tensor],
    tables: tuple[Tensor, Tensor, Tensor, Tensor],
    sizes: tuple[int, int, int, int],
    numbers: tuple[float, float, float, float],
) -> None:
    """A whole pre-norm layer with rotary positions and SwiGLU, added to `x` in place: the other operators in a chain.

    Args:
        x: (1, N, E), contiguous.
        weights: of the two RMSNorms, in fp32; then panels, scales, offsets and bias, as `linear` has them, of queries,
            keys and values joined, of the output matrix, of gate and up joined, and of down.
        angles: cos and sin, (1, 1, N, R), of x's dtype.
        kept: keys and values of the layer, (slots, K, D) each.
        tables: where the new tokens' keys and values go, (N,) int64; and block table, query starts and lengths, see
            `paged_attention`.
        sizes: query heads, features between gate and down, window (0 for none), and tokens in a block.
        numbers: the norms' eps, the scale of the scores, and their cap (0 for none).
    """
    torch.ops.intaglio.layer_.default(x, weights, *angles, *kept, *tables, *sizes, *numbers)


def nf4_quantize(weights: Tensor, borders: Tensor, size: int) -> tuple[Tensor, Tensor] | None:
    """Each block of weights to 4 bits, see `parts.nf4`.

    Args:
        weights: (n,), fp32 or bf16.
        borders: (15,) fp32, between the 16 values.
        size: of a block, a multiple of 32.

    Returns:
        two weights a byte, uint8 (n / 2,), and the blocks' largest magnitudes, fp32 (n / size,), NaN where a weight
        is; None where there is no operator for this device or dtype, or the last block is shorter.
    """
    served = weights.device.type == "cpu" and weights.dtype in _DTYPES and len(weights) % size == 0
    if not served or not available():
        return None
    made: tuple[Tensor, Tensor] = torch.ops.intaglio.nf4_quantize.default(weights.contiguous(), borders, size)
    return made


def nf4_dequantize(packed: Tensor, scales: Tensor, values: Tensor, size: int, dtype: torch.dtype) -> Tensor | None:
    """The way back: (n,) in `dtype`, of the 16 `values`, fp32; None as above."""
    served = (
        packed.device.type == "cpu" and dtype in (*_DTYPES, torch.float16) and 2 * len(packed) == len(scales) * size
    )
    if not served or not available():
        return None
    made: Tensor = torch.ops.intaglio.nf4_dequantize.default(packed, scales, values, size, dtype)
    return made


def nf4_scales(codes: Tensor, largest: Tensor, values: Tensor, size: int) -> Tensor | None:
    """Scales of 8 bits: values[codes], each block of `size` times its own of `largest`, fp32; None as above."""
    if codes.device.type != "cpu" or not available():
        return None
    made: Tensor = torch.ops.intaglio.nf4_scales.default(codes, largest, values, size)
    return made
