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
from intaglio.specs.base import explain, validate
from intaglio.specs.decoder import DecoderSpec
from intaglio.specs.families.config import CannotExpress, Config

__all__ = ["FAMILIES", "OWN_TYPE", "config_of", "load_config", "read_config", "read_directory"]

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
"""`model_type` -> module; the order in which a spec is offered to them."""


class Family(Protocol):
    """What a family's module holds."""

    MODEL_TYPE: str
    ARCHITECTURE: str

    def read(self, config: Config) -> DecoderSpec: ...

    def write(self, spec: DecoderSpec) -> dict[str, Any]: ...


def read_directory(path: Path) -> DecoderSpec:
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


def read_config(data: dict[str, Any], where: str = "config.json") -> DecoderSpec:
    """The spec that a `config.json` describes.

    Raises:
        UserError: an unknown architecture, an unknown key, a missing, unsupported or contradictory value; names it.
    """
    model_type = data.get("model_type")
    if model_type == OWN_TYPE:
        spec: DecoderSpec = validate(DecoderSpec, data.get("spec"), where)
        return spec
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        architectures = data.get("architectures")
        named = f" ({', '.join(map(str, architectures))})" if isinstance(architectures, list) and architectures else ""
        what = f"unknown architecture: model_type {model_type!r}{named}"
        raise UserError(what, where=where, mend=nearest(str(model_type), FAMILIES))
    return _read(_family(model_type), data, where)


def config_of(spec: DecoderSpec) -> dict[str, Any]:
    """The `config.json` of a spec: that of the first family that says exactly this, else our own."""
    for model_type in FAMILIES:
        family = _family(model_type)
        try:
            config = family.write(spec)
            exact = _read(family, config, model_type) == spec
        except (CannotExpress, UserError):
            continue
        if exact:
            return {"architectures": [family.ARCHITECTURE], "model_type": model_type, **config}
    return {"architectures": ["IntaglioDecoder"], "model_type": OWN_TYPE, "spec": spec.plain()}


def _family(model_type: str) -> Family:
    module: Any = import_module(f"intaglio.specs.families.{FAMILIES[model_type]}")
    return module


def _read(family: Family, data: dict[str, Any], where: str) -> DecoderSpec:
    config = Config(data, where)
    try:
        spec = family.read(config)
    except ValidationError as error:
        raise explain(error, where) from error
    config.finish()
    return spec
