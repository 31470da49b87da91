"""A model directory (or a GGUF file) to a running model: built without weights, then filled one tensor at a time.

Peak memory is about one copy of the weights in the dtype asked for.
"""

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from intaglio.checkpoints.four_bits import NF4Source, as_stored, read_weights
from intaglio.checkpoints.gguf import open_gguf
from intaglio.checkpoints.maps import MAPS
from intaglio.checkpoints.sources import SafetensorsSource, TensorSource
from intaglio.checkpoints.weight_map import Link, links_of, their_shapes
from intaglio.errors import UserError, nearest
from intaglio.models.build import build_model
from intaglio.models.quantize import frozen_matrices, put_matrix
from intaglio.specs.families import load_config, read_config
from intaglio.specs.quantization import QuantizationSpec, quantization_of

__all__ = ["DTYPES", "dtype_of", "fill", "load_directory", "load_gguf", "load_source", "skipped_layers_of"]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}

# What older files hold though it follows from the config; and the copies of a matrix of embeddings that is tied.
_DERIVED = re.compile(
    r"(^|\.)(rotary_emb\.inv_freq|attn\.(attention\.)?(masked_)?bias|attention\.(masked_)?bias|embed_positions\.weight)$"
)
_TIED = (
    "lm_head.weight",
    "embed_out.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
)


def load_directory(
    path: Path, dtype: str | None = None, device: str = "cpu", quantization: QuantizationSpec | None = None
) -> Any:
    """The model of a Hugging Face directory, of the class that its spec's kind has.

    Args:
        path: a folder with `config.json` and safetensors.
        dtype: `float32`, `bfloat16`, ...; None takes the one the config names, else float32.
        device: where the weights go.
        quantization: how to keep the matrices of the layers. What the files have in 4 bits stays so in any case.

    Raises:
        UserError: config or weights missing, not understood, corrupt, left over or of the wrong shape.
    """
    config = load_config(path)
    where = str(path / "config.json")
    source = SafetensorsSource(path)
    kept = NF4Source(source) if quantization_of(config, where) else source
    return load_source(config, kept, where, dtype, device, quantization)


def load_gguf(
    path: Path, dtype: str | None = None, device: str = "cpu", quantization: QuantizationSpec | None = None
) -> Any:
    """The model of a GGUF file, dequantised to `dtype` (bfloat16 unless another is asked for).

    Raises:
        UserError: not a whole GGUF file, or one that we do not understand.
    """
    source = open_gguf(path)
    return load_source(source.config(), source, str(path), dtype or "bfloat16", device, quantization)


def load_source(
    config: dict[str, Any],
    source: TensorSource,
    where: str,
    dtype: str | None = None,
    device: str = "cpu",
    quantization: QuantizationSpec | None = None,
) -> Any:
    """The model that `config` describes, with the weights of `source`; `where` is what to call the config."""
    spec = read_config(config, where)
    if "ForSequenceClassification" in str(config.get("architectures")):
        raise UserError("a classifier, which predicts no tokens", where=where, mend="load it with load_classifier")
    stored = dtype_of(config, dtype, where)
    with torch.device("meta"):
        model = build_model(spec)
    rules, skipped = MAPS.get(config["model_type"]), skipped_layers_of(config)
    fill(model, source, rules, stored, torch.device(device), skipped, quantization)
    return model.eval()


def dtype_of(config: dict[str, Any], dtype: str | None, where: str) -> torch.dtype:
    """The dtype asked for, else the one the config names, else float32.

    Raises:
        UserError: none that we know.
    """
    name = dtype or config.get("dtype") or config.get("torch_dtype") or "float32"
    if not isinstance(name, str) or name not in DTYPES:
        raise UserError(f"unknown dtype {name!r}", where=where, mend=nearest(str(name), DTYPES))
    return DTYPES[name]


def skipped_layers_of(config: dict[str, Any]) -> int:
    """How many layers stand behind the last: DeepSeek's multi-token prediction."""
    skipped = config.get("num_nextn_predict_layers")
    return skipped if isinstance(skipped, int) else 0


def fill(
    model: Any,
    source: TensorSource,
    rules: Any,
    dtype: torch.dtype,
    device: torch.device | None = None,
    skipped_layers: int = 0,
    quantization: QuantizationSpec | None = None,
) -> None:
    """Gives `model` (ours, on the meta device) the weights of `source`, after checking every name and shape.

    `skipped_layers` layers behind the model's last may be left over. With `quantization` the matrices of the layers
    are put into 4 bits, each as soon as it is read.

    Raises:
        UserError: a tensor is missing, left over or of the wrong shape; names it, and both shapes. Or a tied model's
            file holds an output matrix that is not the embedding matrix.
    """
    links = links_of(model, rules)
    found = _match(source, {name for link in links for name in link.theirs})
    if isinstance(source, NF4Source):
        links = [as_stored(link) if source.holds(found.get(link.theirs[0], "")) else link for link in links]
    wanted = their_shapes(model, links, model.spec)
    _check(found, source.shapes(), wanted, source.where, _ignored(model, found, skipped_layers))
    buffers, matrices = dict(model.named_buffers()), frozen_matrices(model)
    for link in links:
        names = [found[name] for name in link.theirs]
        in_four = (
            read_weights(link, names, source, dtype, quantization, model.spec) if link.ours[0] in matrices else None
        )
        if in_four is None:
            stored = torch.float32 if link.ours[0] in buffers else dtype  # the router's correction stays in fp32
            _fill_one(model, link, [source.tensor(name, stored) for name in names], device)
        else:
            for name, weights in zip(link.ours, in_four, strict=True):
                put_matrix(model, name, [weight.to(device) for weight in weights])
    if _ties(model):
        model.tie_weights()
        _check_tied(next(model.parameters()), source, found)  # every model begins with its embeddings


def _ties(model: Any) -> bool:
    return bool(getattr(model.spec, "tie_embeddings", False))


def _match(source: TensorSource, wanted: Collection[str]) -> dict[str, str]:
    """Name that is wanted (or left over) -> name in the source: wrappers' prefixes off, the base model's put on."""
    bases = {name.split(".", 1)[0] for name in wanted}
    found = {}
    for name in source.shapes():
        bare = name.replace("_orig_mod.", "").removeprefix("module.")
        based = [f"{base}.{bare}" for base in bases if f"{base}.{bare}" in wanted]
        found[bare if bare in wanted or not based else based[0]] = name
    return found


def _ignored(model: Any, found: dict[str, str], skipped_layers: int) -> set[str]:
    """Tensors that may be left over: derived buffers, copies of tied embeddings, layers to skip behind the last."""
    beyond = tuple(f"model.layers.{model.spec.num_layers + extra}." for extra in range(skipped_layers))
    tied = _TIED if _ties(model) else ()
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
            raise UserError(f"tensor {name!r} is missing", where=where, mend=_instead(name, set(found) - set(wanted)))
        if shapes[found[name]] != shape:
            what = f"tensor {name!r} has shape {list(shapes[found[name]])}, the config asks for {list(shape)}"
            raise UserError(what, where=where)
    left_over = sorted(set(found) - set(wanted) - ignored)
    if left_over:
        name = left_over[0]
        what = f"tensor {name!r} of shape {list(shapes[found[name]])} is left over ({len(left_over)} in all)"
        raise UserError(what, where=where, mend="the config does not describe these weights")


def _instead(name: str, left_over: Collection[str]) -> str:
    """What may have been meant by a name that is missing."""
    close = get_close_matches(name, left_over, n=1) or sorted(left_over)[:1]
    return f"there is {close[0]!r}, which the config does not describe" if close else ""


def _check_tied(embedding: Tensor, source: TensorSource, found: dict[str, str]) -> None:
    for name in _TIED:
        if name in found and not torch.equal(
            source.tensor(found[name], embedding.dtype).to(embedding.device), embedding
        ):
            what = f"tensor {name!r} differs from the embeddings, though the config ties the two"
            raise UserError(what, where=source.where, mend="set tie_word_embeddings to false, or remove the tensor")


def _fill_one(model: Any, link: Link, theirs: Sequence[Tensor], device: torch.device | None) -> None:
    ours = link.transform.to_ours(list(theirs), model.spec)
    for name, tensor in zip(link.ours, ours, strict=True):
        owner, _, attribute = name.rpartition(".")
        module = model.get_submodule(owner)
        tensor = tensor.contiguous().to(device)
        if attribute in module._buffers:
            module._buffers[attribute] = tensor
        else:
            module._parameters[attribute] = nn.Parameter(tensor)
