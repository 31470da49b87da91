"""NF4: weights of 4 bits that are made anew whenever they are used (Dettmers et al. 2023, arXiv 2305.14314).

A matrix is cut, row by row, into blocks of 64 weights. Each is divided by its largest magnitude and becomes the
number of the nearest of 16 values, which a normal distribution falls on equally often; two numbers share a byte. The
magnitudes themselves are kept in 8 bits (double quantisation). All of it is what bitsandbytes does, bit for bit.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from intaglio import native
from intaglio.errors import UserError
from intaglio.specs.quantization import NESTED_BLOCK

__all__ = ["CODE", "DYNAMIC", "NF4Linear", "NF4Stack", "NF4Weight", "dequantize", "quantize_nf4"]

# fmt: off
CODE = torch.tensor([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
])
# fmt: on
"""The 16 values (16,): quantiles of N(0, 1), 0 among them, divided by the largest (appendix E of the paper)."""

_BETWEEN = (CODE[:-1] + CODE[1:]) / 2
_PAIRS = torch.stack((CODE.repeat_interleave(16), CODE.repeat(16)), dim=1)  # (256, 2): what each byte stands for
_SMALLEST = 1e-38  # instead of 0, to divide by


def _dynamic() -> Tensor:
    tenfolds = []
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2**exponent + 1)
        tenfolds.append(10.0 ** (exponent - 6) * ((edges[:-1] + edges[1:]) / 2))
    values = torch.cat(tenfolds)
    return torch.cat((-values, torch.tensor([0.0, 1.0]), values)).sort().values


DYNAMIC = _dynamic()
"""256 values for the scales (256,): finer the closer to 0, half of them beyond +-0.1 (Dettmers 2015, 1511.04561)."""

_NEAREST = torch.bucketize(torch.arange(65536) / 32767.5 - 1, (DYNAMIC[:-1] + DYNAMIC[1:]) / 2).to(torch.uint8)


@dataclass(frozen=True)
class NF4Weight:
    """A tensor of `n` weights in 4 bits.

    Attributes:
        packed: uint8 (ceil(n / 2),): the first weight of two in the high bits.
        absmax: each block's scale: fp32 (blocks,), or its number in `DYNAMIC`, uint8 (blocks,).
        nested_absmax: fp32 (ceil(blocks / 256),): what scales of 8 bits are multiplied by; or None.
        nested_offset: fp32 (): what is then added to them; or None.
        shape: of the tensor.
        dtype: of the tensor that it was made from; what a file says of it.
        blocksize: weights in a block; the last may be shorter.
    """

    packed: Tensor
    absmax: Tensor
    nested_absmax: Tensor | None
    nested_offset: Tensor | None
    shape: tuple[int, ...]
    dtype: torch.dtype
    blocksize: int

    def tensors(self) -> dict[str, Tensor | None]:
        """Its tensors by the names of the attributes."""
        names = ("packed", "absmax", "nested_absmax", "nested_offset")
        return {name: getattr(self, name) for name in names}

    def to(self, device: torch.device | None) -> "NF4Weight":
        """The same on a device; None leaves it where it is."""
        moved = {name: None if tensor is None else tensor.to(device) for name, tensor in self.tensors().items()}
        return replace(self, **moved)  # type: ignore[arg-type]

    def misfit(self) -> str | None:
        """What is wrong with the sizes or types of its tensors, if anything."""
        count = math.prod(self.shape)
        blocks = -(-count // self.blocksize)
        sizes = {"packed": -(-count // 2), "absmax": blocks, "nested_absmax": -(-blocks // NESTED_BLOCK)}
        kinds = {"packed": torch.uint8, "absmax": torch.float32 if self.nested_absmax is None else torch.uint8}
        for name, size in sizes.items():
            tensor, kind = self.tensors()[name], kinds.get(name, torch.float32)
            if tensor is not None and (tensor.shape != (size,) or tensor.dtype != kind):
                return f"{name} is {tensor.dtype} of {list(tensor.shape)}, {kind} of [{size}] is needed"
        return None

    def scales(self) -> Tensor:
        """Each block's scale, fp32 (blocks,)."""
        if self.nested_absmax is None or self.nested_offset is None:
            return self.absmax
        made = native.nf4_scales(self.absmax, self.nested_absmax, DYNAMIC, NESTED_BLOCK)
        if made is None:
            steps = DYNAMIC.to(self.absmax.device)[self.absmax.int()]
            made = _scaled(steps, self.nested_absmax, NESTED_BLOCK)
        return made + self.nested_offset


def _scaled(values: Tensor, scales: Tensor, blocksize: int) -> Tensor:
    """Each block of (n,) times its scale (blocks,), in place where the last block is whole."""
    short = -len(values) % blocksize
    blocks = (F.pad(values, (0, short)) if short else values).view(-1, blocksize)  # to pad by nothing is to copy
    return blocks.mul_(scales[:, None]).view(-1)[: len(values)]


@torch.no_grad()
def quantize_nf4(tensor: Tensor, blocksize: int = 64, double_quant: bool = True) -> NF4Weight:
    """The nearest weights of 4 bits to a tensor of any shape; what lies in the middle goes down.

    Args:
        tensor: fp32, bf16 or fp16.
        blocksize: weights that share a scale.
        double_quant: whether the scales are kept in 8 bits.

    Raises:
        UserError: a weight that is no finite number.
    """
    packed, absmax = _quantize(tensor.reshape(-1), blocksize)
    if not absmax.isfinite().all():
        raise UserError("there are weights that are no finite numbers", mend="look for where they come from")
    nested_absmax = nested_offset = None
    if double_quant:
        nested_offset = absmax.mean()
        absmax, nested_absmax = _quantize_scales(absmax - nested_offset)
    return NF4Weight(packed, absmax, nested_absmax, nested_offset, tuple(tensor.shape), tensor.dtype, blocksize)


def _quantize(flat: Tensor, blocksize: int) -> tuple[Tensor, Tensor]:
    """(n,) -> two weights a byte, uint8 (ceil(n / 2),), and each block's largest magnitude, fp32 (blocks,)."""
    if kernels := _kernels(flat):
        packed, absmax = kernels.quantize_4bit.default(flat, blocksize, "nf4", torch.uint8)
        return packed.view(-1), absmax
    made = native.nf4_quantize(flat, _BETWEEN, blocksize)
    if made is not None:
        return made
    blocks = F.pad(flat.float(), (0, -len(flat) % blocksize)).view(-1, blocksize)
    absmax = blocks.abs().amax(dim=1)
    scaled = blocks * (1 / absmax.clamp(min=_SMALLEST))[:, None]
    if len(flat) % blocksize:  # bitsandbytes treats a short block in its own way
        absmax[-1].clamp_(min=_SMALLEST)
        scaled[-1] = blocks[-1] / absmax[-1]
    codes = torch.bucketize(scaled.clamp_(-1, 1).view(-1), _BETWEEN.to(flat.device), out_int32=True).to(torch.uint8)
    return ((codes[::2] << 4) | codes[1::2])[: (len(flat) + 1) // 2], absmax


def _quantize_scales(scales: Tensor) -> tuple[Tensor, Tensor]:
    """(blocks,) -> the nearest of `DYNAMIC`, uint8 (blocks,), and the largest magnitude of each 256, fp32.

    What is near is told of 65536 steps from -1 to 1, as bitsandbytes' kernel for a CPU does; 0 alone is number 0.
    """
    blocks = F.pad(scales, (0, -len(scales) % NESTED_BLOCK)).view(-1, NESTED_BLOCK)
    largest = blocks.abs().amax(dim=1, keepdim=True)
    steps = ((blocks * (1 / largest.clamp(min=_SMALLEST)) + 1) * 32767.5 + 0.5).int().clamp_(0, 65535)
    codes = torch.where(largest == 0, 0, _NEAREST.to(scales.device)[steps])
    return codes.view(-1)[: len(scales)], largest.view(-1)


def dequantize(weight: NF4Weight, dtype: torch.dtype) -> Tensor:
    """The tensor that the 4 bits stand for, of the shape it had; multiplied in fp32, then rounded to `dtype`."""
    count, scales = math.prod(weight.shape), weight.scales()
    if kernels := _kernels(weight.packed):
        by_kernel: Tensor = kernels.dequantize_4bit.default(
            weight.packed, scales, weight.blocksize, "nf4", weight.shape, dtype
        )
        return by_kernel
    made = native.nf4_dequantize(weight.packed, scales, CODE, weight.blocksize, dtype)
    if made is not None:
        return made.view(weight.shape)
    values = _PAIRS.to(weight.packed.device)[weight.packed.int()].view(-1)[:count]
    return _scaled(values, scales, weight.blocksize).view(weight.shape).to(dtype)


def _kernels(tensor: Tensor) -> Any:
    """bitsandbytes' operators for what is on a CUDA device, where it is installed; else None."""
    return _bitsandbytes() if tensor.is_cuda else None


@cache
def _bitsandbytes() -> Any:
    try:
        import bitsandbytes  # noqa: F401 - it registers its operators
    except ImportError:
        return None
    return torch.ops.bitsandbytes


class _Product(torch.autograd.Function):
    """x W^T + b with W made anew in the backward too: what is kept between the two is 4 bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, weight: NF4Weight) -> Tensor:
        ctx.weight = weight
        return F.linear(x, dequantize(weight, x.dtype), bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x_grad = grad @ dequantize(ctx.weight, grad.dtype) if ctx.needs_input_grad[0] else None
        bias_grad = grad.flatten(0, -2).sum(dim=0) if ctx.needs_input_grad[1] else None
        return x_grad, bias_grad, None


class NF4Linear(nn.Module):
    """x W^T + b with W in 4 bits, in the dtype of x. The gradient goes to x (and to b), never to W.

    Args:
        weight: (out, in).
        bias: (out,), a parameter, or None.
    """

    packed: Tensor
    absmax: Tensor
    nested_absmax: Tensor | None
    nested_offset: Tensor | None

    def __init__(self, weight: NF4Weight, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.blocksize, self.made_from = weight.blocksize, weight.dtype
        for name, tensor in weight.tensors().items():
            self.register_buffer(name, tensor)
        self.bias = bias

    @property
    def quantized(self) -> NF4Weight:
        """W as it is kept."""
        tensors = (self.packed, self.absmax, self.nested_absmax, self.nested_offset)
        return NF4Weight(*tensors, self.shape, self.made_from, self.blocksize)

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)"""
        return self.out_features, self.in_features

    def weights(self) -> list[NF4Weight]:
        """The one matrix; see `NF4Stack`."""
        return [self.quantized]

    @property
    def weight(self) -> Tensor:
        """W made anew, (out, in), in the dtype that it was made from: for those who take it apart."""
        return dequantize(self.quantized, self.made_from)

    def dequantized(self) -> Tensor:
        """W, fp32 (out, in)."""
        return dequantize(self.quantized, torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)"""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return _Product.apply(x, bias, self.quantized)

    def _apply(self, fn: Any, recurse: bool = True) -> "NF4Linear":
        """To another device only: a scale rounded to the model's dtype would be another weight."""
        before = self.quantized.tensors()
        super()._apply(fn, recurse)
        for name, tensor in before.items():
            setattr(self, name, None if tensor is None else tensor.to(self.packed.device))
        return self


class NF4Stack(nn.ModuleList):
    """A matrix in 4 bits for each expert, where `Experts` has a stack of them.

    Args:
        weights: of each expert (out, in).
    """

    def __init__(self, weights: Iterable[NF4Weight]) -> None:
        super().__init__(NF4Linear(weight) for weight in weights)

    def __iter__(self) -> Iterator[NF4Linear]:
        return cast(Iterator[NF4Linear], super().__iter__())

    @property
    def shape(self) -> tuple[int, int, int]:
        """(X, out, in)"""
        return len(self), *next(iter(self)).shape

    def weights(self) -> list[NF4Weight]:
        """Each expert's matrix."""
        return [expert.quantized for expert in self]

    def dequantized(self) -> Tensor:
        """The stack, fp32 (X, out, in)."""
        return torch.stack([expert.dequantized() for expert in self])

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        """(rows, in) sorted by expert, whose rows end at `ends` (X,) -> (rows, out)"""
        parts = x.tensor_split(ends[:-1].cpu().long())
        return torch.cat([expert(part) for expert, part in zip(self, parts, strict=True) if len(part)])
