"""A low-rank update where a gradient is wanted: in the dtype that the model computes in, and added at once.

Legend: N tokens, I features in, O features out, r rank.

In bf16 the plain form copies x into fp32 and the result back, which took two thirds of the time of the frozen product
beside it (SmolLM2's layer, 870 tokens, rank 16, one thread). This one rounds A and B instead, as an autocast does, and
takes a third of that; A and B themselves, which train, stay in fp32. For the backward it keeps x, which other parts
keep as well, and (N, r).

With native operators A x, B and the sum are one pass over the output, and of the backward what is large is read once
for each gradient; where the frozen product is made here as well, the update's gradient is added to its in place.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from intaglio.native import gradients

__all__ = ["adapted_product", "add_low_rank", "suit_together", "suits"]

_BLOCK = 32  # native operators take features in whole blocks


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


def suit_together(x: Tensor, weight: Tensor, a: Tensor) -> bool:
    """Whether `adapted_product` may take these; arguments as there."""
    frozen = torch.is_grad_enabled() and not weight.requires_grad
    return frozen and gradients.serves(x, weight) and _served(weight.shape[0], weight.shape[1], a)


def adapted_product(x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """W x + bias + scale * B A x, W and bias being frozen.

    Args:
        x: (..., I).
        weight: W (O, I).
        bias: (O,) or None.
        a: (r, I).
        b: (O, r).
        scale: s.

    Returns:
        (..., O).
    """
    out: Tensor = _AdaptedProduct.apply(x, weight, bias, a, b, scale)
    return out


def _served(outputs: int, inputs: int, a: Tensor) -> bool:
    return outputs % _BLOCK == 0 and inputs % _BLOCK == 0 and a.dtype == torch.float32


class _AdaptedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        rows = x.flatten(0, -2).contiguous()  # (N, I)
        out, low = gradients.low_rank_added(F.linear(rows, weight, bias), rows, a, b, scale)
        ctx.save_for_backward(x, weight, low, a, b)
        ctx.scale = scale
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, low, a, b = ctx.saved_tensors
        d_out = d_outs[0].flatten(0, -2).contiguous()  # (N, O)
        d_x = d_out @ weight if ctx.needs_input_grad[0] else None
        d_a, d_b = gradients.low_rank_backward(d_out, x.flatten(0, -2).contiguous(), low, a, b, ctx.scale, d_x)
        return None if d_x is None else d_x.view(x.shape), None, None, d_a, d_b, None


class _AddLowRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        if gradients.serves(out, x) and _served(out.shape[-1], x.shape[-1], a):
            before, rows = out.flatten(0, -2).contiguous(), x.flatten(0, -2).contiguous()
            changed, low = gradients.low_rank_added(before, rows, a, b, scale)
            ctx.save_for_backward(x, low, a, b)
            return changed.view(out.shape)
        low = x.flatten(0, -2) @ a.to(x.dtype).mT  # (N, r)
        ctx.save_for_backward(x, low, a, b)
        up = (b * scale).to(x.dtype).mT
        # in a batch of one: selective checkpointing keeps `addmm`, and this is made again in no time
        return torch.baddbmm(out.flatten(0, -2)[None], low[None], up[None]).view(out.shape)

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        x, low, a, b = ctx.saved_tensors
        d_out = d_outs[0].flatten(0, -2)  # (N, O)
        d_low = d_out @ (b * ctx.scale).to(d_out.dtype)  # (N, r)
        d_x = (d_low @ a.to(d_out.dtype)).view(x.shape) if ctx.needs_input_grad[1] else None
        d_a = (d_low.mT @ x.flatten(0, -2)).to(a.dtype) if ctx.needs_input_grad[2] else None
        d_b = (d_out.mT @ low).to(b.dtype).mul_(ctx.scale) if ctx.needs_input_grad[3] else None
        return d_outs[0], d_x, d_a, d_b, None
