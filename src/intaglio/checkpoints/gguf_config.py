"""A `config.json` from a GGUF file's metadata, by the family's tables."""

from typing import Any, Final

import numpy as np

from intaglio.checkpoints.gguf_container import Container
from intaglio.checkpoints.gguf_families import FAMILIES, Family
from intaglio.errors import UserError, nearest

__all__ = ["FRACTIONS", "STOPS", "build_config", "choose_family", "llama3_divisors", "stop_ids"]

FRACTIONS: Final = {
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scaling.factor",
}
"""The keys whose numbers need not be whole."""

IDS: Final = {"bos_token_id": "bos", "pad_token_id": "padding"}
STOPS: Final = ("eos", "eot", "eom")
LLAMA3: Final = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def choose_family(container: Container) -> Family:
    """The family of the file's architecture.

    Raises:
        UserError: an architecture without a table.
    """
    name = str(container.metadata.get("general.architecture"))
    if name not in FAMILIES:
        what = f"GGUF architecture {name!r} is not supported"
        raise UserError(what, where=str(container.path), mend=nearest(name, FAMILIES))
    return FAMILIES[name](container.metadata)


def build_config(container: Container, family: Family) -> dict[str, Any]:
    """Hugging Face's `config.json` for the file.

    Raises:
        UserError: a missing key, or a value that the family cannot express; names the key and the file.
    """
    reader = _Keys(container)
    config: dict[str, Any] = {"architectures": [family.model_class], "model_type": family.model_type}
    config |= {ours: reader.number(key) for key, ours in family.required.items()}
    config |= {ours: reader.number(key) for key, ours in family.optional.items() if reader.has(key)}
    if family.rotary:
        config |= _head_sizes(config, reader) | _rotary(reader)
    config |= {"vocab_size": _vocab_size(container), "tie_word_embeddings": is_tied(container)}
    config |= {ours: _token_id(container, key) for ours, key in IDS.items()}
    config["eos_token_id"] = stop_ids(container)
    _check_layers(container, reader)
    config |= {ours: tensor in container.tensors for ours, tensor in family.biases.items()}
    return {**dict(family.derive(config)), **config, **family.constants}


def is_tied(container: Container) -> bool:
    """Whether the output matrix is the embedding: left out of the file, or in it a second time."""
    embedding, output = container.tensors.get("token_embd.weight"), container.tensors.get("output.weight")
    if embedding is None or output is None:
        return True
    same_kind = (embedding.kind, embedding.shape) == (output.kind, output.shape)
    return same_kind and bool(np.array_equal(container.raw(embedding), container.raw(output)))


def stop_ids(container: Container) -> int | list[int] | None:
    """Every id the file names as an end: of the text, of a turn, of a message."""
    found = [_token_id(container, key) for key in STOPS]
    ids = list(dict.fromkeys(each for each in found if each is not None))
    return ids if len(ids) > 1 else next(iter(ids), None)


def _token_id(container: Container, name: str) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = container.metadata.get(key)
    if value is None or (isinstance(value, int) and 0 <= value < _vocab_size(container)):
        return value
    raise UserError(f"the metadata key {key!r} is {str(value)[:60]}, not a token", where=str(container.path))


def _check_layers(container: Container, reader: "_Keys") -> None:
    layers = {name.split(".")[1] for name in container.tensors if name.startswith("blk.")}
    stated = reader.number("block_count")
    if len(layers) != stated:
        raise reader.error(f"'{reader.prefix}block_count' is {stated}, but the file holds {len(layers)} layers")


class _Keys:
    """The metadata keys under the architecture's name."""

    def __init__(self, container: Container) -> None:
        self.metadata, self.where = container.metadata, str(container.path)
        self.prefix = f"{container.metadata['general.architecture']}."
        self.rope_factors = container.tensors.get("rope_freqs.weight")
        self.container = container

    def has(self, key: str) -> bool:
        return self.prefix + key in self.metadata

    def number(self, key: str) -> Any:
        """The number under `key`; a list that says the same for every layer counts as one number."""
        value = self.metadata.get(self.prefix + key)
        if value is None:
            raise self.error(f"the metadata key {self.prefix + key!r} is missing")
        if isinstance(value, list) and len(set(map(str, value))) == 1:
            value = value[0]
        kinds = (int, float) if key in FRACTIONS else (int,)
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < float("inf"):
            raise self.error(f"the metadata key {self.prefix + key!r} is {str(value)[:60]}, not one positive number")
        return value

    def error(self, what: str) -> UserError:
        return UserError(what, where=self.where)


def _vocab_size(container: Container) -> int:
    """Rows of the embedding: more than the tokenizer has where the vocabulary was padded."""
    embedding = container.tensors.get("token_embd.weight")
    if embedding is None:
        raise UserError("the tensor 'token_embd.weight' is missing", where=str(container.path))
    return embedding.shape[0]


def _head_sizes(config: dict[str, Any], reader: _Keys) -> dict[str, Any]:
    """What the file leaves out when it is the usual: as many key heads as heads, and hidden_size / heads wide."""
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    sizes = {
        "num_key_value_heads": config.get("num_key_value_heads", heads),
        "head_dim": config.get("head_dim", hidden // heads),
    }
    if reader.has("rope.dimension_count") and reader.number("rope.dimension_count") != sizes["head_dim"]:
        raise reader.error("rotary positions over a part of each head are not supported in a GGUF file")
    if reader.has("attention.value_length") and reader.number("attention.value_length") != sizes["head_dim"]:
        raise reader.error("keys and values of different lengths are not supported in a GGUF file")
    return sizes


def _rotary(reader: _Keys) -> dict[str, Any]:
    theta = reader.number("rope.freq_base") if reader.has("rope.freq_base") else 10000.0
    scaling = _scaling(reader, theta)
    return {"rope_theta": theta} | ({"rope_scaling": scaling} if scaling else {})


def _scaling(reader: _Keys, theta: float) -> dict[str, Any] | None:
    """Hugging Face's `rope_scaling` for the file's keys; None when positions are not scaled."""
    if reader.rope_factors is not None:
        return _llama3_scaling(reader, theta)
    kind = reader.metadata.get(f"{reader.prefix}rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise reader.error(f"the metadata key '{reader.prefix}rope.scaling.type' is {kind!r}; known: linear, yarn")
    scaling = {"rope_type": kind, "factor": reader.number("rope.scaling.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = reader.number("rope.scaling.original_context_length")
    return scaling


def _llama3_scaling(reader: _Keys, theta: float) -> dict[str, Any]:
    """Llama 3 stores no settings, only the number each frequency is divided by. The largest is the factor; with the
    settings of all Llama 3 models it must give back the stored numbers, else we would be guessing."""
    assert reader.rope_factors is not None
    stored = reader.container.raw(reader.rope_factors).view(np.float32)
    scaling = {"rope_type": "llama3", "factor": float(stored.max()), **LLAMA3}
    if not np.allclose(stored, llama3_divisors(len(stored), theta, scaling), rtol=1e-3):
        raise reader.error("the tensor 'rope_freqs.weight' does not hold Llama 3's rotary scaling")
    return scaling


def llama3_divisors(count: int, theta: float, scaling: dict[str, Any]) -> np.ndarray[Any, Any]:
    """(D/2,): 1 for fast frequencies, `factor` for slow ones, in between interpolated in the frequency (Llama 3.1)."""
    wavelength = 2 * np.pi * theta ** (np.arange(count) / count)
    turns = scaling["original_max_position_embeddings"] / wavelength
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(1 / (keep + (1 - keep) / scaling["factor"]))
