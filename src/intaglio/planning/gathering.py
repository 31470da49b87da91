"""What FSDP2 makes of shards while a step goes on: parameters gathered, gradients whole, what is sent. No torch.

A layer is a group; so is the embedding with learned positions (and the output matrix, if it is the same), and so is
what stands at the end: the last norm, the output matrix or a head. See `parallel.data`, whose settings these are:

    zero   whole from the first forward on          whole while a group computes
    1      parameters that train; and with more     its gradient, and what is sent of it
           than one micro-batch their gradients
    2      parameters that train                    the same
    3      a tied embedding; the end, from its      the group and, in the backward, the one before it, which is gathered
           forward to its backward                  ahead; its gradient, and what is sent of it

Gathered parameters and gradients are in the compute dtype; what is sent of a gradient, and what is added up over
micro-batches, is fp32.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from intaglio.planning.adapters import in_layers
from intaglio.planning.states import Tensors
from intaglio.planning.tape import FLOAT
from intaglio.specs.quantization import QuantizationSpec

__all__ = ["Gathered", "gathered_of"]

_FIRST, _END = "embeddings", "end"


@dataclass(frozen=True)
class Gathered:
    """Bytes, by what they are.

    Attributes:
        loss: while the loss is made.
        layer: while the backward of a layer runs, the worst of them.
        embedding: at the backward's end, when the embedding's gradient is there.
        whole: the whole model in the compute dtype, as whoever generates reads it.
    """

    loss: dict[str, int]
    layer: dict[str, int]
    embedding: dict[str, int]
    whole: int


@dataclass(frozen=True)
class _Group:
    """Bytes to be gathered, and elements whose gradient is whole for a while."""

    gathered: int
    trained: int


def gathered_of(
    tensors: Tensors,
    itemsize: int,
    *,
    adapted: bool,
    accumulates: bool,
    quantization: QuantizationSpec | None = None,
) -> Gathered:
    """What is there beside the shards of one model.

    Args:
        tensors: of it.
        itemsize: bytes of one element in the compute dtype.
        adapted: whether what trains is an adapter on frozen weights.
        accumulates: whether a step has more than one micro-batch.
        quantization: of frozen weights.
    """
    zero = tensors.layout.zero
    if not zero:
        return Gathered({}, {}, {}, 0)
    groups = dict(_groups(tensors, itemsize, adapted, quantization))
    layers = [group for name, group in groups.items() if name not in (_FIRST, _END)]
    first, end = (groups.get(name, _Group(0, 0)) for name in (_FIRST, _END))
    everything = sum(group.gathered for group in groups.values())
    trained = sum(group.trained for group in groups.values())
    if zero == 3:
        tied = "embed_tokens.weight" in tensors.computed and "lm_head.weight" not in tensors.computed
        always = {"gathered parameters": first.gathered if tied else 0}
        loss = {"gathered parameters": always["gathered parameters"] + end.gathered}
    else:
        always = loss = {"gathered parameters": everything}
    if zero == 1 and accumulates:
        always = always | {"whole gradients": trained * FLOAT}
        loss = loss | {"whole gradients": trained * FLOAT}
    worst = max((_backward(*pair, itemsize, zero) for pair in _pairs(layers)), key=_total, default={})
    ended = _backward(_Group(0, first.trained), _Group(0, 0), itemsize, zero)
    return Gathered(loss, _added(always, worst), _added(always, ended), everything)


def _groups(
    tensors: Tensors, itemsize: int, adapted: bool, quantization: QuantizationSpec | None
) -> Iterator[tuple[str, _Group]]:
    """In the order of the forward; frozen weights are gathered at zero 3 only, in the bytes that they are kept in."""
    sizes: dict[str, list[int]] = {}
    if adapted and tensors.layout.zero == 3:
        for name, shape in tensors.computed.items():
            few = quantization is not None and in_layers(name) and len(shape) > 1
            size = prod(shape) * itemsize
            if few and quantization is not None:
                size = prod(shape[:-2]) * quantization.num_bytes(prod(shape[-2:]))
            sizes.setdefault(_group_of(name), [0, 0])[0] += size
    for name, shape in tensors.trained.items():
        group = sizes.setdefault(_group_of(name), [0, 0])
        group[0] += prod(shape) * itemsize
        group[1] += prod(shape)
    return ((name, _Group(*pair)) for name, pair in sizes.items())


def _group_of(name: str) -> str:
    head, _, rest = name.partition(".")
    if head == "layers":
        return f"layers.{rest.partition('.')[0]}"
    return _FIRST if head in ("embed_tokens", "positions") else _END


def _pairs(layers: list[_Group]) -> Iterator[tuple[_Group, _Group]]:
    """Each with the one before it."""
    return zip(layers, [_Group(0, 0), *layers], strict=False)


def _backward(group: _Group, ahead: _Group, itemsize: int, zero: int) -> dict[str, int]:
    gathered = group.gathered + ahead.gathered if zero == 3 else 0
    return {
        "gathered parameters": gathered,
        "whole gradients": group.trained * itemsize,
        "sent gradients": group.trained * FLOAT,
    }


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in dict.fromkeys((*one, *other))}


def _total(parts: Mapping[str, int]) -> int:
    return sum(parts.values())
