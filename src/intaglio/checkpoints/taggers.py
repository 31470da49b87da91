"""A tagger to a directory and back: `model_type: intaglio` with the encoder's spec inside, and the tags' names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from intaglio.checkpoints.load import dtype_of, fill
from intaglio.checkpoints.save import write_weights
from intaglio.checkpoints.sources import SafetensorsSource
from intaglio.errors import UserError
from intaglio.files import whole_directory, write_json
from intaglio.models.heads import Tagger
from intaglio.models.recurrent import RecurrentEncoder
from intaglio.specs.families import config_of, load_config, read_config
from intaglio.text.tokenizer import Tokenizer

__all__ = ["load_tagger", "save_tagger"]

_ARCHITECTURE = "IntaglioTagger"
_SHARD = 5 * 10**9


def save_tagger(model: Tagger, tags: Sequence[str], path: Path, tokenizer: Tokenizer | None = None) -> None:
    """Writes config with the names of the tags, weights and, where there is one, tokenizer; whole or not at all.

    Raises:
        UserError: the disk is full or the folder cannot be written; what stood there before still stands.
    """
    assert len(tags) == model.score.out_features, "a name each"
    dtype = str(model.score.weight.dtype).removeprefix("torch.")
    named = {"architectures": [_ARCHITECTURE], "id2label": {str(i): tag for i, tag in enumerate(tags)}, "dtype": dtype}
    with whole_directory(path) as beside:
        write_json(beside / "config.json", {**config_of(model.spec), **named})
        write_weights(model, beside, None, _SHARD)
        if tokenizer:
            tokenizer.save(beside)


def load_tagger(path: Path, dtype: str | None = None, device: str = "cpu") -> tuple[Tagger, tuple[str, ...]]:
    """The tagger of a directory, and the names of its tags in the order of the scores.

    Raises:
        UserError: not a tagger's directory, or one that is damaged; see `load_directory`.
    """
    config, where = load_config(path), str(path / "config.json")
    if config.get("architectures") != [_ARCHITECTURE]:
        raise UserError("no tagger", where=where, mend="load it with load_model")
    spec, stored = read_config(config, where), dtype_of(config, dtype, where)
    tags = _tags(config, where)
    with torch.device("meta"):
        model = Tagger(RecurrentEncoder(spec), len(tags))
    fill(model, SafetensorsSource(path), None, stored, torch.device(device))
    return model.eval(), tags


def _tags(config: dict[str, Any], where: str) -> tuple[str, ...]:
    names = config.get("id2label")
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(len(names))}:
        raise UserError("id2label does not name the tags", where=where)
    return tuple(str(names[str(i)]) for i in range(len(names)))
