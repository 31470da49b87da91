"""A low-rank update where a gradient is wanted: in the dtype that the model computes in, and added at once.

Legend: N tokens, I features in, O features out, r rank.

In bf16 the plain form copies x into fp32 and the result back, which took two thirds of the time of the frozen product
beside it (SmolLM2's layer, 870 tokens, rank 16, one thread). This one rounds A and B instead, as an autocast does, and
takes a third of that; A and B themselves, which train, stay in fp32. For the backward it keeps x, which other parts
keep as well, and (N, r).
"""

from typing import Any

import torch
from torch import Tensor

__all__ = ["add_low_rank", "suits"]


def suits(x: Tensor, out: Tensor) -> bool:
    """Whether a gradient is wanted, of what is all in one dtype."""
    return torch.is_grad_enabled() and x.dtype == out.dtype


def add_low_rank(out: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """out + scale * B A x.

    Args:
        out: (..., O).
        x: (..., I).
        a: (r, I).
        b: (O, r).
        scale: s.

    Returns:
        (..., O).
    """
    changed: Tensor = _AddLowRank.apply(out, x, a, b, scale)
    return changed


class _AddLowRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
        low = x.flatten(0, -2) @ a.to(x.dtype).mT  # (N, r)
        ctx.save_for_backward(x, low, a, b)
        ctx.scale = scale
        up = (b * scale).to(x.dtype).mT
        # in a batch of one: selective checkpointing keeps `addmm`, and this is made again in no time
        return torch.baddbmm(out.flatten(0, -2)[None], low[None], up[None]).view(out.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, low, a, b = ctx.saved_tensors
        d_out = gradients[0].flatten(0, -2)  # (N, O)
        d_low = d_out @ (b * ctx.scale).to(d_out.dtype)  # (N, r)
        d_x = (d_low @ a.to(d_out.dtype)).view(x.shape) if ctx.needs_input_grad[1] else None
        d_a = (d_low.mT @ x.flatten(0, -2)).to(a.dtype) if ctx.needs_input_grad[2] else None
        d_b = (d_out.mT @ low).to(b.dtype).mul_(ctx.scale) if ctx.needs_input_grad[3] else None
        return gradients[0], d_x, d_a, d_b, None
