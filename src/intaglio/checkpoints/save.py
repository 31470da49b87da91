"""A model to a Hugging Face directory that transformers opens with no code of ours; whole or not at all."""

import errno
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from intaglio.checkpoints.four_bits import as_stored, quantization_config, stored_tensors, their_weights
from intaglio.checkpoints.maps import MAPS
from intaglio.checkpoints.sources import INDEX_FILE, WEIGHTS_FILE
from intaglio.checkpoints.weight_map import links_of
from intaglio.files import whole_directory, write_json
from intaglio.models.quantize import quantized_matrices
from intaglio.specs.families import config_of
from intaglio.text.tokenizer import Tokenizer

__all__ = ["save_model", "save_tokenizer", "token_ids", "write_weights"]

_TOKEN_KEYS = ("bos_token_id", "eos_token_id", "pad_token_id")


def save_model(
    model: Any,
    path: Path,
    tokenizer: Tokenizer | None = None,
    generation_config: dict[str, Any] | None = None,
    max_shard_bytes: int = 5 * 10**9,
) -> None:
    """Writes config, generation config, weights and, where there is one, tokenizer and chat template.

    Tied weights are written once. Matrices of 4 bits stay so, as bitsandbytes lays them out. The config is that of the
    first family that says exactly what `model.spec` says.

    Args:
        model: what to write, of any kind of ours, in its dtype.
        path: the folder; one that exists is replaced.
        tokenizer: written beside the weights.
        generation_config: more keys for `generation_config.json` (`temperature`, ...).
        max_shard_bytes: larger models are split into shards with an index.

    Raises:
        UserError: the disk is full or the folder cannot be written; what stood there before still stands.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    config = config_of(model.spec)
    tokens = token_ids(tokenizer, generation_config or {})
    start = {"decoder_start_token_id": model.spec.start_token_id} if hasattr(model.spec, "start_token_id") else {}
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    with whole_directory(path) as beside:
        write_json(beside / "config.json", {**config, **tokens, "dtype": dtype, **quantization_config(model)})
        write_json(beside / "generation_config.json", {**tokens, **start, **(generation_config or {})})
        write_weights(model, beside, MAPS.get(config["model_type"]), max_shard_bytes)
        if tokenizer:
            tokenizer.save(beside)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """A tokenizer without a model, and in a generation config what ends a text beside the one EOS of its own files."""
    tokenizer.save(folder)
    if tokenizer.eos_token_ids - {tokenizer.eos_token_id}:
        write_json(folder / "generation_config.json", {"eos_token_id": sorted(tokenizer.eos_token_ids)})


def token_ids(tokenizer: Tokenizer | None, generation_config: dict[str, Any]) -> dict[str, Any]:
    """Ids that begin, end and pad a text; null where there is none, or transformers takes its family's default."""
    ids: dict[str, Any] = dict.fromkeys(_TOKEN_KEYS)
    if tokenizer:
        ends = sorted(tokenizer.eos_token_ids)
        ids["bos_token_id"], ids["pad_token_id"] = tokenizer.bos_token_id, tokenizer.pad_token_id
        ids["eos_token_id"] = ends[0] if len(ends) == 1 else ends or None
    return {key: generation_config.get(key, ids[key]) for key in _TOKEN_KEYS}


def write_weights(model: Any, path: Path, rules: Any, max_shard_bytes: int, without: Container[str] = ()) -> None:
    """The tensors of `model` by the names that `rules` give them, but for those of ours named in `without`."""
    shards: list[dict[str, Tensor]] = [{}]
    files: list[tuple[str, list[str]]] = []
    size = total = 0
    for name, tensor in _their_tensors(model, rules, without):
        if shards[0] and size + tensor.nbytes > max_shard_bytes:
            files.append(_write_shard(shards[0], path, len(files)))
            shards[0], size = {}, 0
        shards[0][name] = tensor
        size += tensor.nbytes
        total += tensor.nbytes
    files.append(_write_shard(shards[0], path, len(files)))
    _name_shards(files, path, total)


def _their_tensors(model: Any, rules: Any, without: Container[str]) -> Iterator[tuple[str, Tensor]]:
    matrices, state = quantized_matrices(model), {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for link in links_of(model, rules):
        if link.ours[0] in without:
            continue
        if link.ours[0] in matrices:
            link = as_stored(link)
            four = their_weights([matrices[name].weights() for name in link.ours], link.transform, model.spec)
            theirs = {
                n: t for name, one in zip(link.theirs, four, strict=True) for n, t in stored_tensors(name, one).items()
            }
        else:
            ours = [state[name].detach() for name in link.ours]
            theirs = dict(zip(link.theirs, link.transform.to_theirs(ours, model.spec), strict=True))
        for name, tensor in theirs.items():
            yield name, tensor.to("cpu").contiguous()


def _write_shard(tensors: dict[str, Tensor], path: Path, number: int) -> tuple[str, list[str]]:
    name = f"shard-{number:05d}"
    # safetensors refuses tensors that share memory: experts unbound from one stack do
    whole = {key: t.clone() if t.untyped_storage().nbytes() != t.nbytes else t for key, t in tensors.items()}
    try:
        save_file(whole, path / name, metadata={"format": "pt"})
    except SafetensorError as error:  # how it reports a full disk
        raise OSError(errno.EIO, str(error)) from error
    (path / name).chmod(0o644)
    return name, list(tensors)


def _name_shards(files: list[tuple[str, list[str]]], path: Path, total: int) -> None:
    """One file keeps the plain name; several get numbers and an index."""
    if len(files) == 1:
        (path / files[0][0]).rename(path / WEIGHTS_FILE)
        return
    weight_map: dict[str, str] = {}
    for number, (name, tensors) in enumerate(files, 1):
        final = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        (path / name).rename(path / final)
        weight_map |= dict.fromkeys(tensors, final)
    write_json(path / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})
