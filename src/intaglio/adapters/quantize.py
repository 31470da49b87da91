"""A model whose matrices are 4 bits, for adapters to train beside (QLoRA, Dettmers et al. 2023, arXiv 2305.14314)."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.checkpoints.models import load_model
from intaglio.errors import UserError
from intaglio.models.build import build_model
from intaglio.models.quantize import frozen_matrices, put_matrix, quantized_matrices
from intaglio.parts.nf4 import quantize_nf4
from intaglio.specs import ModelSpec
from intaglio.specs.quantization import QuantizationSpec

__all__ = ["load_quantized", "quantize", "random_quantized"]

_STD = 0.02


def quantize(model: Any, spec: QuantizationSpec) -> None:
    """Puts 4 bits in the place of every matrix in the layers, one at a time; before any adapter is attached.

    Afterwards nothing of the model trains.

    Raises:
        UserError: there is no such matrix.
    """
    for name in _matrices(model):
        _put(model, name, model.get_parameter(name), spec)
    model.requires_grad_(False)


def load_quantized(name: str | Path, spec: QuantizationSpec, dtype: str | None = None, device: str = "cpu") -> Any:
    """The model, its matrices put into 4 bits as they are read: beside it, one of them is in memory at a time.

    Nothing of it trains.

    Args:
        name: a pulled name, a directory or a GGUF file; what is 4 bits there stays as it is.
        spec: how the other matrices are kept.
        dtype: of all the rest, and what matrices are rounded to first; None takes the one the weights are stored in.
        device: where it goes.

    Raises:
        UserError: see `load_model`; a model without such matrices.
    """
    model = load_model(name, dtype=dtype, device=device, quantization=spec)
    _matrices(model, in_four_bits=True)
    model.requires_grad_(False)
    return model


def random_quantized(model_spec: ModelSpec, spec: QuantizationSpec, dtype: torch.dtype, seed: int = 0) -> Any:
    """A model to measure with: N(0, 0.02) in every matrix, made and put into 4 bits one after the other.

    Args:
        model_spec: of the model.
        spec: how its matrices are kept.
        dtype: of all the rest.
        seed: of the numbers.
    """
    with torch.device("meta"):
        model: Any = build_model(model_spec)
    generator, matrices = torch.Generator().manual_seed(seed), set(_matrices(model))
    for name, parameter in list(model.named_parameters()):
        made = _random(model, name, torch.empty(parameter.shape, dtype=dtype), generator)
        if name in matrices:
            _put(model, name, made, spec)
        else:
            path, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(path), attribute, nn.Parameter(made))
    if getattr(model_spec, "tie_embeddings", False):
        model.tie_weights()
    model.requires_grad_(False)
    return model


def _random(model: nn.Module, name: str, empty: Tensor, generator: torch.Generator) -> Tensor:
    """Fills it: matrices and embeddings are random; biases are 0 and norms do nothing."""
    if empty.ndim > 1:
        return empty.normal_(0.0, _STD, generator=generator)
    owner = model.get_submodule(name.rpartition(".")[0])
    return empty.fill_(0.0 if name.endswith("bias") or getattr(owner, "unit_offset", False) else 1.0)


def _matrices(model: Any, *, in_four_bits: bool = False) -> list[str]:
    names = list(quantized_matrices(model)) if in_four_bits else frozen_matrices(model)
    if not names:
        raise UserError(f"a {type(model).__name__} has no matrices that can be kept in 4 bits", where="quantization")
    return names


def _put(model: Any, name: str, matrix: Tensor, spec: QuantizationSpec) -> None:
    stack = matrix if matrix.ndim == 3 else matrix[None]
    put_matrix(model, name, [quantize_nf4(one, spec.blocksize, spec.double_quant) for one in stack])
