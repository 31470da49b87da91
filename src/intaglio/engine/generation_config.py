"""What a model's own `generation_config.json` recommends, as sampling parameters."""

from pathlib import Path
from typing import Any

from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.files import read_json

__all__ = ["recommended_params", "stated_fields"]

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_SEARCH = ("length_penalty", "early_stopping")


def recommended_params(folder: Path, **changes: Any) -> SamplingParams:
    """How the model in `folder` asks to be run: greedily where its config does not say otherwise, as transformers does.

    Keys that say nothing about the choice of tokens are left alone, and a `max_length`, which counts differently for
    each kind of model, is too.

    Args:
        folder: of a model; without the file there is nothing to say.
        changes: fields that are known better.

    Raises:
        UserError: not a JSON object, a value out of range, or a forbidden text of several tokens.
    """
    config, file = _read(folder)
    beams = changes.get("num_beams") or config.get("num_beams") or 1
    names = _SEARCH if beams > 1 else _SAMPLING if config.get("do_sample") else ("repetition_penalty",)
    fields = {name: config[name] for name in names if config.get(name) is not None}
    if beams > 1 or not config.get("do_sample"):
        fields["temperature"] = 0.0
    return SamplingParams(**{"num_beams": beams, "forbidden_token_ids": _forbidden(config, file), **fields, **changes})


def stated_fields(folder: Path) -> dict[str, Any]:
    """The fields of `SamplingParams` that the config gives a value, and no others.

    What a server takes where a request is silent, as vLLM does: the rest is OpenAI's, a temperature of 1 say.

    Raises:
        UserError: as `recommended_params`.
    """
    config, file = _read(folder)
    fields = {name: config[name] for name in _SAMPLING if config.get(name) is not None}
    if forbidden := _forbidden(config, file):
        fields["forbidden_token_ids"] = forbidden
    return SamplingParams(**fields).model_dump(exclude_unset=True)


def _read(folder: Path) -> tuple[dict[str, Any], Path]:
    file = folder / "generation_config.json"
    config = read_json(file) if file.is_file() else {}
    if not isinstance(config, dict):
        raise UserError("not a JSON object", where=str(file))
    return config, file


def _forbidden(config: dict[str, Any], file: Path) -> tuple[int, ...]:
    """`bad_words_ids`: each a list of one token."""
    words = config.get("bad_words_ids") or []
    if not all(isinstance(word, list) and len(word) == 1 and isinstance(word[0], int) for word in words):
        raise UserError("bad_words_ids of several tokens are not supported", where=str(file))
    return tuple(word[0] for word in words)
