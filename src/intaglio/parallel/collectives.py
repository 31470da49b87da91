"""What ranks send each other inside a forward, and what goes back in its backward. All of it on plain tensors.

A tensor is *whole* (every rank has all of it), *cut* along a dimension (every rank has a piece), or *in parts* (every
rank has a summand). A gradient is too, and that is what tells the functions of this module apart:

    function      forward                 backward
    join          cut -> whole            in parts -> cut       (all-gather; reduce-scatter)
    join_alike    cut -> whole            whole -> cut          (all-gather; nothing is sent)
    settle        in parts -> cut         cut -> whole          (reduce-scatter; all-gather)
    total         in parts -> whole       whole -> whole        (all-reduce; nothing is sent)
    share         whole -> whole          in parts -> whole     (nothing is sent; all-reduce)
    apportion     whole -> whole          whole -> in parts     (nothing is sent)
    exchange      cut along one -> cut along another, and back  (all-to-all, both)

`share` and `total`, `join` and `settle` are pairs (Shoeybi et al. 2019, section 3: f and g; Korthikanti et al. 2022,
section 4.2.2: g and its bar).

Pieces are cut as `torch.chunk` cuts: the last may be shorter, or empty. Everything is made contiguous before it is
sent: gloo takes the memory of a strided tensor for what it is not (pytorch/pytorch#192920).

Legend: W ranks, n elements of a dimension.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from intaglio.planning.shards import chunk

__all__ = [
    "apportion",
    "bounds",
    "cut",
    "exchange",
    "gathered",
    "join",
    "join_alike",
    "settle",
    "share",
    "summed",
    "total",
]

Group = dist.ProcessGroup


def bounds(size: int, group: Group) -> tuple[int, int]:
    """Where this rank's piece of `size` starts, and how long it is."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    return min(-(-size // world) * rank, size), chunk(size, world, rank)


def cut(x: Tensor, dim: int, group: Group) -> Tensor:
    """This rank's piece of what is whole; its gradient is zero elsewhere, so that of the whole is in parts."""
    return x.narrow(dim, *bounds(x.shape[dim], group))


def summed(x: Tensor, group: Group) -> Tensor:
    """The sum over ranks, without a gradient."""
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=group)
    return x


def gathered(x: Tensor, dim: int, size: int, group: Group) -> Tensor:
    """The pieces of all ranks, `size` elements along `dim`, without a gradient."""
    world = dist.get_world_size(group)
    moved = _padded(x.movedim(dim, 0), -(-size // world))  # (n / W, ...)
    out = moved.new_empty((world * len(moved), *moved.shape[1:]))
    dist.all_gather_single(out, moved, group=group)
    return out[:size].movedim(0, dim).contiguous()


def scattered(x: Tensor, dim: int, group: Group) -> Tensor:
    """This rank's piece of the sum over ranks, without a gradient."""
    world, (_, length) = dist.get_world_size(group), bounds(x.shape[dim], group)
    step = -(-x.shape[dim] // world)
    moved = _padded(x.movedim(dim, 0), step * world)  # (n, ...)
    out = moved.new_empty((step, *moved.shape[1:]))
    dist.reduce_scatter_single(out, moved, group=group)
    return out[:length].movedim(0, dim).contiguous()


def _padded(x: Tensor, length: int) -> Tensor:
    """Zeros behind x along dimension 0; contiguous."""
    if len(x) == length:
        return x.contiguous()
    return F.pad(x, (*[0] * (2 * x.ndim - 1), length - len(x)))


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, size: int, group: Group) -> Tensor:
        ctx.how = dim, group
        return gathered(x, dim, size, group)

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        return scattered(d_outs[0], *ctx.how), None, None, None


class _JoinAlike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, size: int, group: Group) -> Tensor:
        ctx.how = dim, group
        return gathered(x, dim, size, group)

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        return cut(d_outs[0], *ctx.how).contiguous(), None, None, None


class _Settle(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Group) -> Tensor:
        ctx.how = dim, x.shape[dim], group
        return scattered(x, dim, group)

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        return gathered(d_outs[0], *ctx.how), None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return summed(x, group)

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        return d_outs[0], None


class _Share(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        return summed(d_outs[0], ctx.group), None


class _Apportion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.world = dist.get_world_size(group)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        return d_outs[0] / ctx.world, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, given: int, taken: int, size: int, group: Group) -> Tensor:
        ctx.how = taken, given, x.shape[given], group
        return _exchanged(x, given, taken, size, group)

    @staticmethod
    def backward(ctx: Any, *d_outs: Tensor) -> tuple[Tensor | None, ...]:
        return _exchanged(d_outs[0], *ctx.how), None, None, None, None


def _exchanged(x: Tensor, given: int, taken: int, size: int, group: Group) -> Tensor:
    world = dist.get_world_size(group)
    step, (_, length) = -(-size // world), bounds(x.shape[given], group)
    split = -(-x.shape[given] // world)
    moved = x.movedim((given, taken), (0, 1))  # (given, taken / W, ...)
    sent = F.pad(moved, (*[0] * (2 * (x.ndim - 2)), 0, step - moved.shape[1], 0, split * world - len(moved)))
    sent = sent.contiguous()
    out = torch.empty_like(sent)
    dist.all_to_all_single(out, sent, group=group)  # (W, given / W, taken / W, ...)
    out = out.unflatten(0, (world, split)).transpose(0, 1).flatten(1, 2)[:length, :size]
    return out.movedim((0, 1), (given, taken)).contiguous()


def join(x: Tensor, dim: int, size: int, group: Group) -> Tensor:
    """All of what is cut along `dim`, `size` elements; whoever goes on computes a part of what follows."""
    out: Tensor = _Join.apply(x, dim, size, group)
    return out


def join_alike(x: Tensor, dim: int, size: int, group: Group) -> Tensor:
    """All of what is cut along `dim`, `size` elements; every rank goes on with the same."""
    out: Tensor = _JoinAlike.apply(x, dim, size, group)
    return out


def settle(x: Tensor, dim: int, group: Group) -> Tensor:
    """The sum of what every rank has a part of, cut along `dim`."""
    out: Tensor = _Settle.apply(x, dim, group)
    return out


def total(x: Tensor, group: Group) -> Tensor:
    """The sum of what every rank has a part of; every rank goes on with the same."""
    out: Tensor = _Total.apply(x, group)
    return out


def share(x: Tensor, group: Group) -> Tensor:
    """x, which every rank has; whoever goes on computes a part of what follows."""
    out: Tensor = _Share.apply(x, group)
    return out


def apportion(x: Tensor, group: Group) -> Tensor:
    """x, from which every rank computes the same although its gradient is to be in parts: each gives its fraction."""
    out: Tensor = _Apportion.apply(x, group)
    return out


def exchange(x: Tensor, given: int, taken: int, size: int, group: Group) -> Tensor:
    """What is cut along `taken`, `size` elements of it in all, is cut along `given` instead."""
    out: Tensor = _Exchange.apply(x, given, taken, size, group)
    return out
