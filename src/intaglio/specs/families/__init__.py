"""Hugging Face's `config.json` to a spec and back, one file per family. No torch.

A config is read by its `model_type`, never by a name. A spec is written as the first family that expresses it
*exactly*: what the family writes is read again, and must be the spec we started from. A spec that none expresses is
written as `model_type: intaglio` with the spec inside.
"""

from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from intaglio.errors import UserError, nearest
from intaglio.files import read_json
from intaglio.specs.base import explain
from intaglio.specs.families.config import CannotExpress, Config
from intaglio.specs.model import ModelSpec, validate_model
from intaglio.specs.quantization import quantization_of

__all__ = [
    "ENCODER_DECODERS",
    "FAMILIES",
    "OWN_TYPE",
    "config_of",
    "load_config",
    "read_config",
    "read_directory",
]

OWN_TYPE = "intaglio"

FAMILIES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "olmo2": "olmo2",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "mixtral": "mixtral",
    "qwen3_moe": "qwen3_moe",
    "deepseek_v2": "deepseek_v2",
    "deepseek_v3": "deepseek_v3",
    "gpt2": "gpt2",
    "openai-gpt": "openai_gpt",
    "gpt_neo": "gpt_neo",
    "gpt_neox": "gpt_neox",
}
"""Decoders: `model_type` -> module; the order in which a spec is offered to them."""

ENCODER_DECODERS = {"marian": "marian"}
"""The same for encoder-decoders."""

_BY_KIND = {"decoder": FAMILIES, "encoder_decoder": ENCODER_DECODERS}
_MODULES = {**FAMILIES, **ENCODER_DECODERS}


class Family(Protocol):
    """What a family's module holds."""

    ARCHITECTURE: str

    def read(self, config: Config) -> ModelSpec: ...

    def write(self, spec: Any) -> dict[str, Any]: ...


def read_directory(path: Path) -> Any:
    """The spec of a model directory, from its `config.json` alone.

    Raises:
        UserError: no such file, not JSON, or a config that we do not understand exactly.
    """
    return read_config(load_config(path), str(path / "config.json"))


def load_config(path: Path) -> dict[str, Any]:
    """The `config.json` of a model directory.

    Raises:
        UserError: no such file, or not a JSON object.
    """
    data = read_json(path / "config.json")
    if not isinstance(data, dict):
        raise UserError("not a JSON object", where=str(path / "config.json"))
    return data


def read_config(data: dict[str, Any], where: str = "config.json") -> Any:
    """The spec that a `config.json` describes, of the class that its kind of model has.

    Raises:
        UserError: an unknown architecture, an unknown key, a missing, unsupported or contradictory value; names it.
    """
    model_type = data.get("model_type")
    if model_type == OWN_TYPE:
        return validate_model(data.get("spec"), where)
    if not isinstance(model_type, str) or model_type not in _MODULES:
        architectures = data.get("architectures")
        named = f" ({', '.join(map(str, architectures))})" if isinstance(architectures, list) and architectures else ""
        what = f"unknown architecture: model_type {model_type!r}{named}"
        raise UserError(what, where=where, mend=nearest(str(model_type), _MODULES))
    return _read(_family(model_type), data, where)


def config_of(spec: ModelSpec) -> dict[str, Any]:
    """The `config.json` of a spec: that of the first family that says exactly this, else our own."""
    for model_type in _BY_KIND.get(spec.kind, {}):
        family = _family(model_type)
        try:
            config = family.write(spec)
            exact = _read(family, config, model_type) == spec
        except (CannotExpress, UserError):
            continue
        if exact:
            return {"architectures": [family.ARCHITECTURE], "model_type": model_type, **config}
    name = "Intaglio" + spec.kind.title().replace("_", "")
    return {"architectures": [name], "model_type": OWN_TYPE, "spec": spec.plain()}


def _family(model_type: str) -> Family:
    module: Any = import_module(f"intaglio.specs.families.{_MODULES[model_type]}")
    return module


def _read(family: Family, data: dict[str, Any], where: str) -> ModelSpec:
    config = Config(data, where)
    try:
        spec = family.read(config)
    except ValidationError as error:
        raise explain(error, where) from error
    config.raw("quantization_config", None)
    quantization_of(data, where)
    config.finish()
    return spec
