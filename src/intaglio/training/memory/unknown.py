"""Answers for the numbers that fake tensors do not have.

A fake tensor has a shape, a dtype and a storage of that size, without memory behind it (`FakeTensorMode`). A step asks
a few things of numbers all the same, and what it is told here decides shapes: every place has a target, every expert
gets equally many rows, nothing is infinite.

What is walked in many equal blocks takes as much memory in each, so that the first two stand for all.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

__all__ = ["Unknown", "answer_within"]


class Unknown(TorchFunctionMode):
    """While it is entered, numbers are made up; only those of fake tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        answer = _ANSWERS.get(func)
        if answer is not None and isinstance(args[0], FakeTensor | DTensor):
            found = answer(*args, **kwargs)
            if found is not NotImplemented:
                return found
        return func(*args, **kwargs)


def answer_within(layers: Iterable[Any]) -> None:
    """For layers that are computed again: a backward knows nothing of the mode that it was called in."""
    for layer in layers:
        layer.forward = partial(_answered, layer.forward)


def _answered(forward: Callable[..., Any], *args: Any) -> Any:
    with Unknown():
        return forward(*args)


def _number(x: Tensor) -> float | int:
    return 1.0 if x.is_floating_point() else 1


def _list(x: Tensor) -> Any:
    return [_list(row) for row in x] if x.ndim else _number(x)


def _everywhere(x: Tensor) -> Tensor:
    assert x.ndim == 1, "only rows are asked which of their places count"
    return torch.arange(x.numel(), device=x.device)[:, None]


def _evenly(x: Tensor, at: Any, dim: int = 0) -> Any:
    """In as many pieces as there are places to cut at, and one more."""
    if not isinstance(at, Tensor):
        return NotImplemented
    return x.tensor_split(at.numel() + 1, dim)


def _two_blocks(x: Tensor, size: Any, dim: int = 0) -> Any:
    if not isinstance(size, int) or x.shape[dim] <= 2 * size:
        return NotImplemented
    return x.narrow(dim, 0, 2 * size).split(size, dim)


_ANSWERS: Final[dict[Any, Callable[..., Any]]] = {
    Tensor.item: _number,
    Tensor.__float__: lambda x: 1.0,
    Tensor.__int__: lambda x: 0,
    Tensor.__bool__: lambda x: True,
    Tensor.tolist: _list,
    Tensor.nonzero: _everywhere,
    Tensor.split: _two_blocks,
    Tensor.tensor_split: _evenly,
    torch.bincount: lambda x, minlength=0: x.new_zeros(minlength),
}
