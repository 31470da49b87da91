"""An adapter as a directory in PEFT's format: the same logits on both sides, or an error that says why not.

What PiSSA and OLoRA start from is written as part of a plain adapter of twice the rank, `[B, -B0] [A; A0]`: so it fits
the base as that was published, and need not be taken apart again.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from intaglio.adapters.attach import adapter_specs, detach, install, plain, train_only
from intaglio.adapters.peft_config import read_config, write_config
from intaglio.adapters.peft_tensors import Found, fill, tensors_of
from intaglio.adapters.targets import HEAD, Place, Places
from intaglio.checkpoints.save import save_tokenizer
from intaglio.errors import UserError
from intaglio.files import read_json, whole_directory, write_json
from intaglio.models.resize import grow_vocabulary
from intaglio.parts.nf4 import NF4Linear
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.base import validate
from intaglio.specs.families import read_directory
from intaglio.specs.quantization import QuantizationSpec
from intaglio.text.tokenizer import Tokenizer

__all__ = [
    "CONFIG",
    "adapter_tensors",
    "config_of_adapter",
    "head_rows",
    "load_adapter",
    "save_adapter",
    "trained_beside",
]

CONFIG = "adapter_config.json"
_WEIGHTS, _BESIDE, _PREFIX = "adapter_model.safetensors", "intaglio.json", "base_model.model."


def save_adapter(
    model: Any, path: Path, name: str = "default", base: str | None = None, tokenizer: Tokenizer | None = None
) -> None:
    """Writes one adapter of `model`, whole or not at all.

    Where the model has more tokens than its base, the embeddings are written too; where its matrices are 4 bits,
    `intaglio.json` says so.

    Args:
        model: with the adapter.
        path: the folder; one that exists is replaced.
        name: of the adapter.
        base: what it is for: a directory, a pulled name or a hub id.
        tokenizer: written beside, with its chat template.

    Raises:
        UserError: the disk is full or the folder cannot be written; what stood there before still stands.
    """
    spec, places = adapter_specs(model)[name], Places(model)
    ranks, tensors = tensors_of(model, spec, name)
    if (
        base
        and (Path(base) / "config.json").is_file()
        and read_directory(Path(base)).vocab_size < model.spec.vocab_size
    ):
        tensors |= _tables(model, spec, places)
    quantized = _quantization(model)
    with whole_directory(path) as beside:
        write_json(beside / CONFIG, write_config(model, spec, places, ranks, base))
        named = {_PREFIX + key: _alone(tensor) for key, tensor in tensors.items()}
        save_file(named, beside / _WEIGHTS, metadata={"format": "pt"})
        (beside / _WEIGHTS).chmod(0o644)
        if quantized:
            write_json(beside / _BESIDE, {"quantization": {**quantized.plain(), "quant_type": quantized.quant_type}})
        if tokenizer:
            save_tokenizer(tokenizer, beside)


def load_adapter(model: Any, path: Path, name: str = "default", trainable: bool = False) -> LoRASpec:
    """Puts the adapter of a directory onto `model` and makes it the one that counts.

    A model with fewer tokens than the file has embeddings for gets the rows that are missing.

    Args:
        model: with or without other adapters.
        path: the folder.
        name: what to call it here.
        trainable: it alone is to be trained; else nothing of it is.

    Raises:
        UserError: no adapter, one that we do not understand, a tensor that is missing, left over or of the wrong shape.
    """
    where = path / CONFIG
    spec, output_rows = read_config(config_of_adapter(path), str(where))
    found = Found(adapter_tensors(path), str(path / _WEIGHTS))
    _take_tables(model, spec, found)
    install(model, spec, name, output_rows=output_rows)
    try:
        fill(model, spec, name, found)
        _check_left(found)
    except UserError:
        detach(model, name)
        raise
    train_only(model, name if trainable else None)
    return spec


def trained_beside(path: Path) -> QuantizationSpec | None:
    """In how many bits the base was when the adapter of a directory was trained; None: as it is published."""
    if not (path / _BESIDE).is_file():
        return None
    said = read_json(path / _BESIDE)
    spec: QuantizationSpec = validate(QuantizationSpec, said.get("quantization"), str(path / _BESIDE))
    return spec


def _alone(tensor: Tensor) -> Tensor:
    """As safetensors wants it: sharing memory with no other."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def config_of_adapter(path: Path) -> dict[str, Any]:
    """The `adapter_config.json` of a directory.

    Raises:
        UserError: there is none, or it is no JSON object.
    """
    if not (path / CONFIG).is_file():
        raise UserError(f"no adapter: there is no {CONFIG}", where=str(path))
    config = read_json(path / CONFIG)
    if not isinstance(config, dict):
        raise UserError("not a JSON object", where=str(path / CONFIG))
    return config


def adapter_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a directory, by their names without PEFT's prefix.

    Raises:
        UserError: there are none, or the file is damaged.
    """
    file = path / _WEIGHTS
    if not file.is_file():
        pickled = any(path.glob("adapter_model.bin"))
        mend = "we load no pickle; save it with PEFT as safetensors" if pickled else ""
        raise UserError(f"there is no {_WEIGHTS}", where=str(path), mend=mend)
    try:
        stored = load_file(file)
    except (SafetensorError, OSError) as error:
        raise UserError(f"corrupt or cut off ({str(error).splitlines()[0][:120]})", where=str(file)) from error
    return {name.removeprefix(_PREFIX): tensor for name, tensor in stored.items()}


def _quantization(model: Any) -> QuantizationSpec | None:
    matrices = [m for m in model.modules() if isinstance(m, NF4Linear)]
    if not matrices:
        return None
    first: Any = matrices[0]
    return QuantizationSpec(blocksize=first.blocksize, double_quant=first.nested_absmax is not None)


def head_rows(path: Path) -> int:
    """How many labels the adapter of a classifier scores.

    Raises:
        UserError: it holds no head.
    """
    return len(Found(adapter_tensors(path), str(path / _WEIGHTS)).take(f"{HEAD}.weight"))


def _inside(place: Place, spec: LoRASpec, places: Places) -> str:
    """Where PEFT has the matrix of embeddings under what an adapter puts around it."""
    if spec.trainable_token_indices:
        return ".token_adapter.base_layer"
    return ".base_layer" if place in places.targets(spec) else ""


def _tables(model: Any, spec: LoRASpec, places: Places) -> dict[str, Tensor]:
    """The embeddings and the output matrix of the model itself, but for those that the adapter has whole."""
    tables = [place for place in places.tables() if place not in places.saved(spec)]
    return {
        f"{place.module}{_inside(place, spec, places)}.weight": place.to_theirs(
            [plain(model, place.ours[0]).weight], "weight"
        )
        for place in tables
    }


def _take_tables(model: Any, spec: LoRASpec, found: Found) -> None:
    """Gives the model the tokens that the file has more, and takes the embeddings out that are as the model's own."""
    places = Places(model)
    whole = places.saved(spec)
    for place in places.tables():
        name = f"{place.module}{_inside(place, spec, places)}.weight"
        if name not in found.left:
            continue
        table, known = found.left[name], plain(model, place.ours[0]).weight.shape[0]
        if len(table) > model.spec.vocab_size:
            _grow(model, len(table), found.where)
        if place not in whole:
            _take_rows(plain(model, place.ours[0]).weight, found.take(name), known, f"{found.where}: {name}")
    for place in (place for place in places.all if place.ours[0] in places.ties):
        found.drop(f"{place.module}.base_layer.weight", f"{place.module}.token_adapter.base_layer.weight")


def _grow(model: Any, size: int, where: str) -> None:
    rows = model.spec.vocab_size
    if adapter_specs(model):
        what = f"embeddings of {size} tokens, and the model has {rows} and other adapters already"
        raise UserError(what, where=where, mend="load this adapter first")
    grow_vocabulary(model, rows, size)


@torch.no_grad()
def _take_rows(into: Tensor, table: Tensor, known: int, where: str) -> None:
    """The rows from `known` on; those before must be the model's own."""
    if len(table) < len(into):
        raise UserError(f"{len(table)} rows of embeddings for a model of {len(into)}", where=where)
    same = table[:known].to(into.dtype).to(into.device)
    if not torch.allclose(same, into[:known], atol=1e-6):
        what = "the embeddings differ from the model's in rows that both have"
        raise UserError(what, where=where, mend="is this the base that the adapter was trained on?")
    into[known:] = table[known:]


def _check_left(found: Found) -> None:
    """PEFT writes some biases of modules that are saved whole three times."""
    left = [name for name in found.left if ".original_module." not in name and ".modules_to_save." not in name]
    if left:
        what = f"tensor {left[0]!r} is left over ({len(left)} in all)"
        raise UserError(what, where=found.where, mend=f"{CONFIG} does not describe these tensors")
