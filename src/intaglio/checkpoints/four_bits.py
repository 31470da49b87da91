"""Matrices of 4 bits in safetensors, as bitsandbytes lays them out and transformers reads and writes them.

NAME.weight                                 uint8 (ceil(n / 2), 1): two weights a byte
NAME.weight.absmax                          each block's scale: fp32, or uint8 with double quantisation
NAME.weight.quant_map                       the 16 values
NAME.weight.nested_absmax                   with double quantisation: fp32, a scale for each 256 scales
NAME.weight.nested_quant_map                and the 256 values of theirs
NAME.weight.quant_state.bitsandbytes__nf4   JSON as bytes: shape, dtype, block sizes, offset
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from intaglio.checkpoints.sources import SafetensorsSource, TensorSource
from intaglio.checkpoints.weight_map import Joined, Link, Same, Stacked, Transform, Transposed
from intaglio.errors import UserError
from intaglio.models.quantize import quantized_matrices
from intaglio.parts.nf4 import CODE, DYNAMIC, NF4Weight, dequantize, quantize_nf4
from intaglio.specs.base import validate
from intaglio.specs.quantization import NESTED_BLOCK, QuantizationSpec

__all__ = ["NF4Source", "as_stored", "quantization_config", "read_weights", "stored_tensors", "their_weights"]

_STATE = ".quant_state.bitsandbytes__nf4"
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class NF4Source:
    """A directory some of whose matrices are 4 bits: by their own names and shapes, what describes them left out.

    Raises:
        UserError: a description that we do not understand exactly.
    """

    def __init__(self, source: SafetensorsSource) -> None:
        self.where, self._source = source.where, source
        names = source.shapes()
        self._states = {name.removesuffix(_STATE): self._state(name) for name in names if name.endswith(_STATE)}
        self._beside = {name for name in names if name.rpartition(".weight.")[0] + ".weight" in self._states}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the matrices, not of their bytes."""
        shapes = {name: shape for name, shape in self._source.shapes().items() if name not in self._beside}
        return {name: tuple(self._states[name]["shape"]) if name in self._states else shapes[name] for name in shapes}

    def tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        """One tensor, made anew if it is 4 bits."""
        return dequantize(self.weight(name), dtype) if self.holds(name) else self._source.tensor(name, dtype)

    def holds(self, name: str) -> bool:
        """Whether this tensor is 4 bits."""
        return name in self._states

    def weight(self, name: str) -> NF4Weight:
        """A matrix as its file keeps it.

        Raises:
            UserError: bytes or scales that do not fit its shape.
        """
        state, beside = self._states[name], self._source.stored
        double = "nested_offset" in state
        weight = NF4Weight(
            packed=beside(name).view(-1),
            absmax=beside(f"{name}.absmax"),
            nested_absmax=beside(f"{name}.nested_absmax") if double else None,
            nested_offset=torch.tensor(state["nested_offset"], dtype=torch.float32) if double else None,
            shape=tuple(state["shape"]),
            dtype=_DTYPES[state["dtype"]],
            blocksize=state["blocksize"],
        )
        self._check(name, weight)
        return weight

    def _state(self, name: str) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(bytes(self._source.stored(name).tolist()))
        known = state.get("quant_type") == "nf4" and state.get("dtype") in _DTYPES and state.get("shape")
        if not known or state.get("nested_blocksize", NESTED_BLOCK) != NESTED_BLOCK:
            raise UserError(f"{name!r} is not understood: {json.dumps(state)}", where=self.where)
        validate(QuantizationSpec, {"blocksize": state.get("blocksize")}, f"{self.where}: {name}")
        return state

    def _check(self, name: str, weight: NF4Weight) -> None:
        maps = {"quant_map": CODE} | ({"nested_quant_map": DYNAMIC} if weight.nested_absmax is not None else {})
        for suffix, values in maps.items():
            if not torch.equal(self._source.stored(f"{name}.{suffix}"), values):
                raise UserError(f"'{name}.{suffix}' has values of its own", where=self.where)
        if wrong := weight.misfit():
            raise UserError(f"tensor {name!r}: {wrong}", where=self.where, mend="fetch the model again")


def stored_tensors(name: str, weight: NF4Weight) -> dict[str, Tensor]:
    """What a file holds of a matrix."""
    state: dict[str, Any] = {
        "quant_type": "nf4",
        "blocksize": weight.blocksize,
        "dtype": str(weight.dtype).removeprefix("torch."),
        "shape": list(weight.shape),
    }
    # clones: safetensors writes no tensor twice
    tensors = {name: weight.packed[:, None], f"{name}.absmax": weight.absmax, f"{name}.quant_map": CODE.clone()}
    if weight.nested_absmax is not None and weight.nested_offset is not None:
        state |= {"nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32"}
        state |= {"nested_offset": weight.nested_offset.item()}
        tensors |= {f"{name}.nested_absmax": weight.nested_absmax, f"{name}.nested_quant_map": DYNAMIC.clone()}
    return {**tensors, f"{name}{_STATE}": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)}


def quantization_config(model: Any) -> dict[str, Any]:
    """What `config.json` says of a model some of whose matrices are 4 bits; nothing of others."""
    first = next(iter(quantized_matrices(model).values()), None)
    if first is None:
        return {}
    weight = first.weights()[0]
    said = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_quant_storage": "uint8",
        "bnb_4bit_use_double_quant": weight.nested_absmax is not None,
        "bnb_4bit_compute_dtype": str(weight.dtype).removeprefix("torch."),
    }
    return {"quantization_config": said}


def as_stored(link: Link) -> Link:
    """The link of a matrix that is 4 bits: those are (out, in) there as well, whatever the family does with others."""
    match link.transform:
        case Transposed():
            return Link(link.theirs, link.ours, Same())
        case Joined(parts=parts):
            return Link(link.theirs, link.ours, Joined(parts))
    return link


def read_weights(
    link: Link,
    names: Sequence[str],
    source: TensorSource,
    dtype: torch.dtype,
    spec: QuantizationSpec | None,
    model: Any,
) -> list[list[NF4Weight]] | None:
    """Each matrix of ours that a link gives, in 4 bits: one weight, or one for each expert of a stack.

    Args:
        link: of matrices that may be 4 bits.
        names: of its tensors in the source.
        source: what is 4 bits there is kept as it is.
        dtype: what others are rounded to first.
        spec: how others are put into 4 bits; None: not at all, and the answer is None where there are any.
        model: its spec.
    """
    if isinstance(source, NF4Source) and all(map(source.holds, names)):
        return _ours([source.weight(name) for name in names], link.transform, model)
    if spec is None:
        return None

    def quantized(tensor: Tensor) -> NF4Weight:
        return quantize_nf4(tensor, spec.blocksize, spec.double_quant)

    if isinstance(link.transform, Stacked):
        return [[quantized(source.tensor(name, dtype)) for name in names]]
    return [[quantized(matrix)] for matrix in link.transform.to_ours([source.tensor(names[0], dtype)], model)]


def _ours(weights: list[NF4Weight], transform: Transform, model: Any) -> list[list[NF4Weight]]:
    match transform:
        case Stacked():
            return [weights]
        case Same():
            return [weights]
    return [[part] for part in _rearranged(weights, lambda rows: transform.to_ours(rows, model))]


def their_weights(weights: list[list[NF4Weight]], transform: Transform, model: Any) -> list[NF4Weight]:
    """The way back: for each of their tensors."""
    if isinstance(transform, Same | Stacked):
        return weights[0]
    return _rearranged([one for (one,) in weights], lambda rows: transform.to_theirs(rows, model))


def _rearranged(weights: list[NF4Weight], rearrange: Callable[[list[Tensor]], list[Tensor]]) -> list[NF4Weight]:
    """Rows put elsewhere, exactly: bytes and scales go along. The scales then are fp32, since those of 8 bits share
    what they are multiplied by with other rows."""
    first = weights[0]
    if first.shape[1] % first.blocksize:
        what = f"rows of {first.shape[1]} weights in blocks of {first.blocksize}: a block goes over a row's end"
        raise UserError(what, mend="such rows cannot be joined or parted in 4 bits")
    packed = rearrange([weight.packed.view(weight.shape[0], -1) for weight in weights])
    scales = rearrange([weight.scales().view(weight.shape[0], -1) for weight in weights])
    return [
        NF4Weight(p.flatten(), s.flatten(), None, None, (len(p), first.shape[1]), first.dtype, first.blocksize)
        for p, s in zip(packed, scales, strict=True)
    ]
