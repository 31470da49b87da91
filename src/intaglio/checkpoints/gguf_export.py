"""A model to a GGUF file, for llama.cpp and whatever stands on it; matrices in F16 or Q8_0, vectors in F32.

The tables of `gguf_families` are read from right to left. GGUF says less than a spec does, so what was written is read
again, and must be the spec and the tokenizer that were meant: exactly, or not at all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, LlamaFileType
from gguf.quants import quantize

from intaglio.checkpoints.convert import gguf_tokenizer
from intaglio.checkpoints.gguf import open_gguf, pattern_of
from intaglio.checkpoints.gguf_config import llama3_divisors
from intaglio.checkpoints.gguf_export_tokenizer import check_tokenizer, tokenizer_metadata
from intaglio.checkpoints.gguf_families import WRITTEN_AS, Family, Rule
from intaglio.checkpoints.maps import MAPS
from intaglio.checkpoints.models import load_model, load_tokenizer
from intaglio.checkpoints.weight_map import Link, links_of, their_shapes
from intaglio.errors import UserError, nearest
from intaglio.files import whole_file
from intaglio.specs.families import config_of, read_config
from intaglio.text.tokenizer import Tokenizer

__all__ = ["GGUF_KINDS", "export_gguf"]

GGUF_KINDS: Final = {"F16": LlamaFileType.MOSTLY_F16, "Q8_0": LlamaFileType.MOSTLY_Q8_0}
"""How matrices may be stored, and what GGUF calls such a file."""

_IN_FULL: Final = ("ffn_gate_inp.weight", "position_embd.weight")  # matrices that llama.cpp wants in F32
_LARGEST: Final = float(np.finfo(np.float16).max)


def export_gguf(name: str | Path, file: Path, kind: str = "F16") -> None:
    """Writes the model `name` with its tokenizer and chat template to `file`, whole or not at all.

    Raises:
        UserError: GGUF has no words for the model or its tokenizer, or F16 none for a weight.
    """
    model, tokenizer = load_model(name), load_tokenizer(name)
    config = config_of(model.spec)
    if config["model_type"] not in WRITTEN_AS:
        what = f"GGUF has no architecture for this model (it is written as {config['model_type']!r})"
        raise UserError(what, where=str(name), mend=nearest(config["model_type"], WRITTEN_AS))
    architecture, family = WRITTEN_AS[config["model_type"]]
    with whole_file(file) as beside:
        writer = GGUFWriter(beside, architecture)
        _add_metadata(writer, _model_metadata(config, family), f"{architecture}.")
        _add_metadata(writer, tokenizer_metadata(tokenizer, model.spec.vocab_size))
        writer.add_name(Path(name).name)
        writer.add_file_type(GGUF_KINDS[kind])
        _write_tensors(writer, model, config, family, kind)
        _check(beside, model, tokenizer, str(name))


def _model_metadata(config: dict[str, Any], family: Family) -> dict[str, Any]:
    """Keys under the architecture's name."""
    keys = {key: config.get(theirs) for key, theirs in {**family.required, **family.optional}.items()}
    if family.rotary:
        keys |= {"rope.freq_base": float(config["rope_theta"]), "rope.dimension_count": config["head_dim"]}
        keys |= {"attention.key_length": config["head_dim"], "attention.value_length": config["head_dim"]}
        keys |= _scaling(config.get("rope_scaling") or {})
    return {"vocab_size": config["vocab_size"], **{key: value for key, value in keys.items() if value is not None}}


def _scaling(scaling: dict[str, Any]) -> dict[str, Any]:
    """Llama 3's is a tensor (`_rope_factors`); what has no key here is found missing when the file is read again."""
    if scaling.get("rope_type") not in ("linear", "yarn"):
        return {}
    keys = {"rope.scaling.type": scaling["rope_type"], "rope.scaling.factor": float(scaling["factor"])}
    length = scaling.get("original_max_position_embeddings")
    return {**keys, "rope.scaling.original_context_length": length} if length else keys


def _rope_factors(config: dict[str, Any]) -> np.ndarray[Any, Any] | None:
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") != "llama3":
        return None
    return llama3_divisors(config["head_dim"] // 2, config["rope_theta"], scaling).astype(np.float32)


def _add_metadata(writer: GGUFWriter, keys: dict[str, Any], prefix: str = "") -> None:
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in keys.items():
        adders[type(value)](prefix + key, value)


@dataclass(frozen=True)
class _Piece:
    """One tensor of the file.

    Attributes:
        name: GGUF's.
        rule: how its numbers differ from Hugging Face's.
        link: where they come from.
        shape: as it is stored.
        stored: as what.
    """

    name: str
    rule: Rule
    link: Link
    shape: tuple[int, ...]
    stored: GGMLQuantizationType

    def numbers(self, model: Any, config: dict[str, Any]) -> np.ndarray[Any, Any]:
        """The array to be written.

        Raises:
            UserError: a number that F16 cannot hold.
        """
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        ours = [state[name].detach() for name in self.link.ours]
        theirs = [tensor.float() for tensor in self.link.transform.to_theirs(ours, model.spec)]
        if self.rule.transform:
            theirs = [self.rule.transform.write(tensor, config) for tensor in theirs]
        whole = (torch.stack(theirs) if "{e}" in self.rule.name else theirs[0]).contiguous().numpy()
        if self.stored != GGMLQuantizationType.F32 and not np.abs(whole).max() <= _LARGEST:
            raise UserError(f"{self.name} has a weight beyond {_LARGEST:,.0f}, the most that F16 holds")
        return quantize(whole, self.stored)


def _pieces(model: Any, config: dict[str, Any], family: Family, kind: str) -> list[_Piece]:
    links = links_of(model, MAPS[config["model_type"]])
    shapes = their_shapes(model, links, model.spec)
    targets: dict[str, str] = {}
    for pattern, rule in family.tensors.items():
        targets.setdefault(rule.name, pattern)  # a stack of experts comes before the older single ones
    pieces = []
    for link in links:
        theirs, numbers = pattern_of(link.theirs[0])
        pattern = targets[theirs]
        shape = family.tensors[pattern].shape(shapes[link.theirs[0]])
        shape = (len(link.theirs), *shape) if "{e}" in theirs else shape
        name = pattern.format(**numbers)
        pieces.append(_Piece(name, family.tensors[pattern], link, shape, _stored_as(name, shape, kind)))
    return pieces


def _stored_as(name: str, shape: tuple[int, ...], kind: str) -> GGMLQuantizationType:
    if len(shape) == 1 or name.endswith(_IN_FULL):
        return GGMLQuantizationType.F32
    wanted = GGMLQuantizationType[kind]
    return wanted if shape[-1] % GGML_QUANT_SIZES[wanted][0] == 0 else GGMLQuantizationType.F16


def _write_tensors(writer: GGUFWriter, model: Any, config: dict[str, Any], family: Family, kind: str) -> None:
    """The table first, then the numbers, one tensor at a time."""
    pieces = _pieces(model, config, family, kind)
    factors = _rope_factors(config)
    for piece in pieces:
        block, block_bytes = GGML_QUANT_SIZES[piece.stored]
        size = prod(piece.shape) // block * block_bytes
        writer.add_tensor_info(piece.name, piece.shape, np.dtype(np.float32), size, raw_dtype=piece.stored)
    if factors is not None:
        writer.add_tensor_info("rope_freqs.weight", factors.shape, factors.dtype, factors.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for piece in pieces:
        writer.write_tensor_data(piece.numbers(model, config))
    if factors is not None:
        writer.write_tensor_data(factors)
    writer.close()


def _check(file: Path, model: Any, tokenizer: Tokenizer, where: str) -> None:
    """Reads what was written and holds it against what was meant.

    Raises:
        UserError: they differ.
    """
    written = open_gguf(file)
    found = read_config(written.config(), str(file))
    if found != model.spec:
        meant, said = model.spec.plain(), found.plain()
        keys = [key for key in meant if meant[key] != said.get(key)]
        what = f"a GGUF file cannot say all of this model: {', '.join(keys)} would be read differently"
        raise UserError(what, where=where, mend="keep it in its directory")
    check_tokenizer(tokenizer, gguf_tokenizer(written))
