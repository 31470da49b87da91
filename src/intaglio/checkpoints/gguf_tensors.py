"""From GGUF's stored numbers to PyTorch tensors, piece by piece."""

from math import prod
from typing import Any, Final

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from intaglio.errors import UserError

__all__ = ["READABLE", "to_torch"]

PLAIN: Final = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
READABLE: Final = {
    *PLAIN,
    GGMLQuantizationType.Q4_0,
    GGMLQuantizationType.Q4_1,
    GGMLQuantizationType.Q5_0,
    GGMLQuantizationType.Q5_1,
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.Q2_K,
    GGMLQuantizationType.Q3_K,
    GGMLQuantizationType.Q4_K,
    GGMLQuantizationType.Q5_K,
    GGMLQuantizationType.Q6_K,
}
PIECE: Final = 1 << 18  # numbers at a time: temporaries stay in the processor's cache


def to_torch(
    raw: np.ndarray[Any, np.dtype[np.uint8]],
    kind: GGMLQuantizationType,
    shape: tuple[int, ...],
    dtype: torch.dtype,
) -> torch.Tensor:
    """The tensor of `shape` and `dtype` stored in `raw`, (bytes,). Memory: the result and one small piece.

    Raises:
        UserError: a storage type that is not read (`READABLE` lists those that are).
    """
    if kind not in READABLE:
        names = ", ".join(sorted(each.name for each in READABLE))
        raise UserError(f"tensors stored as {kind.name} cannot be read", mend=f"readable types: {names}")
    if kind in PLAIN:
        return torch.frombuffer(bytearray(raw), dtype=PLAIN[kind]).to(dtype).reshape(shape)
    return _dequantise(raw, kind, prod(shape), dtype).reshape(shape)


def _dequantise(
    raw: np.ndarray[Any, np.dtype[np.uint8]], kind: GGMLQuantizationType, count: int, dtype: torch.dtype
) -> torch.Tensor:
    """(count,). Blocks follow one another in memory whatever the shape, so a piece need not end with a row."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    result = torch.empty(count, dtype=dtype)
    for start in range(0, count, PIECE):
        piece = raw[start // block * block_bytes : (start + PIECE) // block * block_bytes]
        # One wide row: the library works on sixteen rows at a time, far too few numbers when rows are narrow.
        values = dequantize(piece.reshape(1, -1), kind)
        result[start : start + PIECE] = torch.from_numpy(values.reshape(-1))
    return result
