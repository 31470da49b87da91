"""A model directory (or a GGUF file) to a running model: built without weights, then filled one tensor at a time.

Peak memory is about one copy of the weights in the dtype asked for.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.checkpoints.gguf import open_gguf
from intaglio.checkpoints.maps import MAPS
from intaglio.checkpoints.sources import SafetensorsSource, TensorSource
from intaglio.checkpoints.weight_map import Link, links_of, their_shapes
from intaglio.errors import UserError, nearest
from intaglio.files import read_json
from intaglio.models.decoder import Decoder
from intaglio.specs.families import read_config

__all__ = ["DTYPES", "fill", "load_directory", "load_gguf", "load_source"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}

# Buffers that older files hold and that follow from the config; and prefixes that wrappers leave behind.
_DERIVED = re.compile(r"(^|\.)(rotary_emb\.inv_freq|attn\.(attention\.)?(masked_)?bias|attention\.(masked_)?bias)$")
_WRAPPERS = ("_orig_mod.", "module.")


def load_directory(path: Path, dtype: str | None = None, device: str = "cpu") -> Decoder:
    """The model of a Hugging Face directory.

    Args:
        path: a folder with `config.json` and safetensors.
        dtype: `float32`, `bfloat16`, ...; None takes the one the config names, else float32.
        device: where the weights go.

    Raises:
        UserError: config or weights missing, not understood, corrupt, left over or of the wrong shape.
    """
    config = read_json(path / "config.json")
    return load_source(config, SafetensorsSource(path), str(path / "config.json"), dtype, device)


def load_gguf(path: Path, dtype: str | None = None, device: str = "cpu") -> Decoder:
    """The model of a GGUF file, dequantised to `dtype` (bfloat16 unless another is asked for).

    Raises:
        UserError: not a whole GGUF file, or one that we do not understand.
    """
    source = open_gguf(path)
    return load_source(source.config(), source, str(path), dtype or "bfloat16", device)


def load_source(
    config: dict[str, Any], source: TensorSource, where: str, dtype: str | None = None, device: str = "cpu"
) -> Decoder:
    """The model that `config` describes, with the weights of `source`; `where` is what to call the config."""
    spec = read_config(config, where)
    name = dtype or config.get("dtype") or config.get("torch_dtype") or "float32"
    if name not in DTYPES:
        raise UserError(f"unknown dtype {name!r}", where=where, mend=nearest(str(name), DTYPES))
    with torch.device("meta"):
        model = Decoder(spec)
    fill(model, source, MAPS.get(config["model_type"]), DTYPES[name], torch.device(device))
    return model.eval()


def fill(
    model: Decoder, source: TensorSource, rules: Any, dtype: torch.dtype, device: torch.device | None = None
) -> None:
    """Gives `model` (on the meta device) the weights of `source`, after checking every name and shape.

    Raises:
        UserError: a tensor is missing, left over or of the wrong shape; names it, and both shapes.
    """
    links = links_of(model, rules)
    wanted = their_shapes(model, links, model.spec)
    found = _match(source, wanted)
    _check(found, source.shapes(), wanted, source.where, _ignored(model, found))
    for link in links:
        _fill_one(
            model, link, [source.tensor(found[name], _stored_dtype(model, link, dtype)) for name in link.theirs], device
        )
    model.tie_weights()


def _match(source: TensorSource, wanted: dict[str, Any]) -> dict[str, str]:
    """Name that is wanted (or left over) -> name in the source: wrappers' prefixes off, the base model's put on."""
    bases = {name.split(".", 1)[0] for name in wanted}
    found = {}
    for name in source.shapes():
        bare = name
        for wrapper in _WRAPPERS:
            bare = bare.removeprefix(wrapper)
        based = [f"{base}.{bare}" for base in bases if f"{base}.{bare}" in wanted]
        found[bare if bare in wanted or not based else based[0]] = name
    return found


def _ignored(model: Decoder, found: dict[str, str]) -> set[str]:
    """Tensors that may be left over: derived buffers, a tied head, layers of multi-token prediction behind the last."""
    beyond = tuple(f"model.layers.{model.spec.num_layers + extra}." for extra in range(4))
    tied = {"lm_head.weight", "embed_out.weight"} if model.spec.tie_embeddings else set()
    return {name for name in found if _DERIVED.search(name) or name in tied or name.startswith(beyond)}


def _check(
    found: dict[str, str],
    shapes: dict[str, tuple[int, ...]],
    wanted: dict[str, tuple[int, ...]],
    where: str,
    ignored: set[str],
) -> None:
    for name, shape in wanted.items():
        if name not in found:
            raise UserError(
                f"tensor {name!r} is missing", where=where, mend=nearest(name, set(found) - set(wanted) or found)
            )
        if shapes[found[name]] != shape:
            what = f"tensor {name!r} has shape {list(shapes[found[name]])}, the config asks for {list(shape)}"
            raise UserError(what, where=where)
    left_over = sorted(set(found) - set(wanted) - ignored)
    if left_over:
        name = left_over[0]
        what = f"tensor {name!r} of shape {list(shapes[found[name]])} is left over ({len(left_over)} in all)"
        raise UserError(what, where=where, mend="the config does not describe these weights")


def _stored_dtype(model: nn.Module, link: Link, dtype: torch.dtype) -> torch.dtype:
    """Parameters in the dtype asked for; buffers (the router's correction) stay in fp32."""
    return dtype if link.ours[0] in dict(model.named_parameters()) else torch.float32


def _fill_one(model: Decoder, link: Link, theirs: Sequence[Tensor], device: torch.device | None) -> None:
    ours = link.transform.to_ours(list(theirs), model.spec)
    for name, tensor in zip(link.ours, ours, strict=True):
        owner, _, attribute = name.rpartition(".")
        module = model.get_submodule(owner)
        tensor = tensor.contiguous().to(device)
        if attribute in module._buffers:
            module._buffers[attribute] = tensor
        else:
            module._parameters[attribute] = nn.Parameter(tensor)
