"""An adapter's directory as what an engine needs to answer under it, beside a model that may be packed or quantised.

The directory is put onto a stand-in of the model: its shapes without its numbers, or, where the adapter's own numbers
cannot be read without those (DoRA's lengths, what PiSSA started from, biases), the model read once more.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from intaglio.adapters.attach import unwrapped, wrappers
from intaglio.adapters.models import load_model
from intaglio.adapters.peft_config import read_config
from intaglio.adapters.peft_files import (
    CONFIG,
    adapter_tensors,
    config_of_adapter,
    head_rows,
    load_adapter,
    trained_beside,
)
from intaglio.adapters.peft_tensors import factors
from intaglio.adapters.targets import HEAD
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier
from intaglio.parts.copies import SavedModule, TokenRows, TrainedBias
from intaglio.parts.latent_attention import LatentAttention
from intaglio.parts.lora import Adapted, LoRAEmbedding, LoRAExperts, LoRARouter, LowRank, matrix_of
from intaglio.parts.updates import AdapterUpdates, Affine, NewRows, Replaced, Update
from intaglio.specs.adapter import LoRASpec, named

__all__ = ["read_updates"]

_MEND = "merge it: intaglio merge BASE ADAPTER OUT"


def read_updates(directory: Path, model: Decoder | SequenceClassifier, base: str | Path) -> AdapterUpdates:
    """Reads an adapter for a model that an engine already runs.

    Args:
        directory: a PEFT directory.
        model: the engine's, packed or not.
        base: where that was read from.

    Raises:
        UserError: see `load_model`; the adapter is for another model; or it changes what requests of several adapters
            cannot share: the vocabulary, experts and their router, a matrix that latent attention takes apart.
    """
    _check_kind(directory, model)
    dtype = next(model.parameters()).dtype
    if _asks_for_numbers(directory):
        carrier = load_model(base, dtype=str(dtype).removeprefix("torch."), adapter=directory)
    else:
        carrier = _hollow(model, dtype)
        load_adapter(carrier, directory)
    _check_vocabulary(carrier, model, directory)
    return AdapterUpdates(_updates(carrier, directory), _notes(directory))


def _check_kind(directory: Path, model: Decoder | SequenceClassifier) -> None:
    classifies = config_of_adapter(directory).get("task_type") == "SEQ_CLS"
    labels = head_rows(directory) if classifies else None
    if labels != (model.num_labels if isinstance(model, SequenceClassifier) else None):
        kinds = f"it scores {labels} labels" if classifies else "it makes text"
        raise UserError(f"the adapter is for another kind of model: {kinds}", where=str(directory))


def _asks_for_numbers(directory: Path) -> bool:
    """Whether the model's own weights are needed to say what the adapter does, or that it is for this model."""
    spec, _ = read_config(config_of_adapter(directory), str(directory / CONFIG))
    relative = spec.use_dora or spec.bias != "none" or spec.init_lora_weights in ("pissa", "olora")
    return relative or any(_is_the_models(name, spec) for name in adapter_tensors(directory))


def _is_the_models(name: str, spec: LoRASpec) -> bool:
    """Whether a tensor is there only because PEFT repeats it: embeddings, as a rule."""
    module, _, parameter = name.rpartition(".")
    whole = parameter == "weight" and "lora_" not in module and not named(module, (*spec.modules_to_save, HEAD))
    return whole or ".base_layer." in name


def _hollow(model: Decoder | SequenceClassifier, dtype: torch.dtype) -> Any:
    """The model as it was built, with zeros that take no memory."""
    with torch.device("meta"):
        built: Any = Decoder(model.spec)
        if isinstance(model, SequenceClassifier):
            built = SequenceClassifier(built, model.num_labels)
            built.drop_outputs()
    for module in built.modules():
        for name, parameter in module.named_parameters(recurse=False):
            zeros = torch.zeros((), dtype=dtype).expand(parameter.shape)
            module.register_parameter(name, nn.Parameter(zeros, requires_grad=False))
    built.tie_weights()
    return built.eval()


def _check_vocabulary(carrier: Any, model: Decoder | SequenceClassifier, directory: Path) -> None:
    if carrier.spec.vocab_size != model.spec.vocab_size:
        what = f"the adapter has {carrier.spec.vocab_size} tokens, and the model {model.spec.vocab_size}"
        raise UserError(what, where=str(directory), mend=_MEND)


def _notes(directory: Path) -> tuple[str, ...]:
    kept = trained_beside(directory)
    if kept is None:
        return ()
    what = f"{directory}: trained beside a base of 4 bits ({kept.quant_type}), answers beside the one that is served"
    return (f"{what}; `intaglio merge` gives exactly what was trained",)


def _updates(carrier: Any, directory: Path) -> dict[str, Update]:
    found: dict[str, Update] = {}
    for path, wrapper in wrappers(carrier):
        bare = ".".join(word for word in path.split(".") if word != "base")
        if isinstance(wrapper, LoRAExperts | LoRARouter) or _is_taken_apart(carrier, bare):
            what = f"{bare}: its update cannot share a batch with other adapters"
            raise UserError(what, where=str(directory), mend=_MEND)
        for piece in wrapper.chosen():
            update = _update(wrapper, piece)
            found[bare] = _with_bias(found[bare], update) if bare in found else update
    return found


def _is_taken_apart(carrier: Any, path: str) -> bool:
    owner, _, name = path.rpartition(".")
    return name == "kv_b_proj" and isinstance(carrier.get_submodule(owner), LatentAttention)


def _update(wrapper: Adapted, piece: Any) -> Update:
    if isinstance(wrapper, SavedModule):
        return Replaced(piece)
    if isinstance(wrapper, TokenRows):
        return NewRows(piece.indices, piece.weight.detach())
    if isinstance(wrapper, TrainedBias):
        return Affine(shift=(piece.bias - piece.before).detach())
    return _low_rank(piece, unwrapped(wrapper), looked_up=isinstance(wrapper, LoRAEmbedding))


def _low_rank(piece: LowRank, part: Any, *, looked_up: bool) -> Affine:
    a, b = factors(piece)
    inner, outer = (b, a * piece.scale) if looked_up else (a.mT, b.mT * piece.scale)
    bias = None if piece.lora_bias is None else (piece.lora_bias * piece.scale).detach()
    if piece.lora_magnitude_vector is None:
        return Affine(inner.contiguous(), outer.contiguous(), None, bias)
    stretch = piece.stretch(matrix_of(part)).detach()
    own = getattr(part, "bias", None)
    shift = None if own is None else (1 - stretch) * own.detach()  # only W is stretched
    return Affine(inner.contiguous(), (outer * stretch).contiguous(), stretch, shift)


def _with_bias(one: Update, other: Update) -> Affine:
    """A low-rank update and a trained bias of the same part."""
    assert isinstance(one, Affine), "only a bias trains beside something else"
    assert isinstance(other, Affine), "only a bias trains beside something else"
    low_rank, bias = (other, one) if one.inner is None else (one, other)
    shifts = [each.shift for each in (low_rank, bias) if each.shift is not None]
    return Affine(low_rank.inner, low_rank.outer, low_rank.stretch, sum(shifts[1:], start=shifts[0]))
