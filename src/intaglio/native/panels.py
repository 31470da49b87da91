"""The layout in which products of few rows read a matrix: panels of 32 outputs, some inputs of each side by side.

Legend: N outputs, P panels (N / 32, rounded up), I inputs, `step` inputs side by side: as many as one instruction
multiplies and adds, 2 of bf16 and 4 of 8-bit integers.

A step down a panel is one read: [inputs i, i + 1, ... of the first of 32 outputs; the same of the second; ...].
"""

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["COLUMNS", "from_columns", "from_panels", "join_nibbles", "split_nibbles", "to_columns", "to_panels"]

COLUMNS = 32


def to_panels(weight: Tensor, step: int) -> Tensor:
    """(N, I) -> (P, I / step, 32 * step); outputs that fill up the last panel are 0."""
    filled = F.pad(weight, (0, 0, 0, -weight.shape[0] % COLUMNS))
    return filled.view(-1, COLUMNS, weight.shape[1] // step, step).transpose(1, 2).flatten(2).contiguous()


def from_panels(panels: Tensor, outputs: int) -> Tensor:
    """What `to_panels` was given: (P, I / step, 32 * step) -> (N, I)"""
    return panels.unflatten(2, (COLUMNS, -1)).transpose(1, 2).flatten(2).flatten(0, 1)[:outputs]


def to_columns(groups: Tensor) -> Tensor:
    """What each output has for each group of its inputs, beside the panels: (N, groups) -> (P, groups, 32)"""
    filled = F.pad(groups, (0, 0, 0, -groups.shape[0] % COLUMNS))
    return filled.view(-1, COLUMNS, groups.shape[1]).transpose(1, 2).contiguous()


def from_columns(columns: Tensor, outputs: int) -> Tensor:
    """What `to_columns` was given: (P, groups, 32) -> (N, groups)"""
    return columns.transpose(1, 2).flatten(0, 1)[:outputs]


def join_nibbles(panels: Tensor) -> Tensor:
    """Integers from -8 to 7, two to a byte: int8 (..., 128) -> uint8 (..., 64); number j + 64 goes above number j."""
    low, high = (panels + 8).to(torch.uint8).chunk(2, dim=-1)
    return low | (high << 4)


def split_nibbles(joined: Tensor) -> Tensor:
    """What `join_nibbles` was given: uint8 (..., 64) -> int8 (..., 128)"""
    return torch.cat((joined & 15, joined >> 4), dim=-1).to(torch.int8) - 8
