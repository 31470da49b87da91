"""A decoder with a classification head, from and to a Hugging Face `...ForSequenceClassification` directory.

transformers has such a class for every family we write; the head is `score.weight` in all of them, and there is no
output matrix. It looks for the last token by its id: the last one that is not `pad_token_id`. With a pad token that
is the EOS it would therefore read the token before the EOS; with none it reads the last place and takes one text at a
time. So we name a pad token that cannot end a text, one that the tokenizer has or, where the model has a row for it, a
new one; here positions alone decide.
"""

import re
from pathlib import Path
from typing import Any

import torch

from intaglio.checkpoints.load import dtype_of, fill, skipped_layers_of
from intaglio.checkpoints.maps import MAPS, classifier_rules
from intaglio.checkpoints.save import token_ids, write_weights
from intaglio.checkpoints.sources import SafetensorsSource
from intaglio.errors import UserError
from intaglio.files import read_json, whole_directory, write_json
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier
from intaglio.specs import DecoderSpec
from intaglio.specs.families import config_of, load_config, read_config
from intaglio.text.tokenizer import Tokenizer

__all__ = ["has_pad", "is_classifier", "load_classifier", "save_classifier"]

_HEAD = "score.weight"
_PAD = "<|pad|>"


def is_classifier(path: Path) -> bool:
    """Whether the directory holds a model with such a head."""
    return path.is_dir() and "ForSequenceClassification" in str(load_config(path).get("architectures"))


def load_classifier(path: Path, dtype: str | None = None, device: str = "cpu") -> SequenceClassifier:
    """The classifier of a directory; it predicts no tokens (see `SequenceClassifier.drop_outputs`).

    Args:
        path: a folder with `config.json` and safetensors.
        dtype: see `load_directory`.
        device: where the weights go.

    Raises:
        UserError: see `load_directory`; or there is no head, or its scores are not as many as the config's labels.
    """
    config, source, where = load_config(path), SafetensorsSource(path), str(path / "config.json")
    spec, stored, labels = read_config(config, where), dtype_of(config, dtype, where), _labels(config, source, where)
    if not isinstance(spec, DecoderSpec):
        raise UserError(f"a classifier over a model of kind {spec.kind!r} is not supported", where=where)
    with torch.device("meta"):
        model = SequenceClassifier(Decoder(spec), len(labels), labels)
    model.drop_outputs()
    rules = classifier_rules(MAPS.get(config["model_type"]))
    fill(model, source, rules, stored, torch.device(device), skipped_layers_of(config))
    return model.eval()


def save_classifier(
    model: SequenceClassifier, path: Path, tokenizer: Tokenizer | None = None, max_shard_bytes: int = 5 * 10**9
) -> None:
    """Writes config with the labels' names, weights and, where there is one, tokenizer; whole or not at all.

    An output matrix of its own, which only an auxiliary loss used, is left out.

    Args:
        model: what to write, in its dtype.
        path: the folder; one that exists is replaced.
        tokenizer: written beside the weights, with a pad token that cannot end a text.
        max_shard_bytes: see `save_model`.

    Raises:
        UserError: the disk is full or the folder cannot be written; what stood there before still stands.
    """
    tokenizer = _with_pad(tokenizer, model.spec.vocab_size) if tokenizer else None
    pad = _pad_token(tokenizer, model.spec.vocab_size) if tokenizer else None
    config = {**_config(model), **token_ids(tokenizer, {}), "pad_token_id": None}
    if tokenizer and pad:
        config["pad_token_id"] = tokenizer.token_id(pad)
    rules = classifier_rules(MAPS.get(config["model_type"]))
    with whole_directory(path) as beside:
        write_json(beside / "config.json", config)
        write_weights(model, beside, rules, max_shard_bytes, without=("decoder.lm_head.weight",))
        if tokenizer:
            tokenizer.save(beside)
            _name_pad(beside / "tokenizer_config.json", pad)


def has_pad(tokenizer: Tokenizer, vocab_size: int) -> bool:
    """Whether a classifier with so many rows can be saved with a pad token that ends no text."""
    return _pad_token(tokenizer, vocab_size) is not None or tokenizer.num_ids < vocab_size


def _with_pad(tokenizer: Tokenizer, vocab_size: int) -> Tokenizer:
    """The tokenizer, with a token more where none of its own can be the padding and the model has a row for one."""
    if _pad_token(tokenizer, vocab_size) is not None or not has_pad(tokenizer, vocab_size):
        return tokenizer
    return tokenizer.with_special([_PAD])


def _labels(config: dict[str, Any], source: SafetensorsSource, where: str) -> tuple[str, ...]:
    """The names that the config gives the scores of the head, or such as transformers gives."""
    count = next((shape[0] for name, shape in source.shapes().items() if name.endswith(_HEAD)), None)
    if count is None:
        raise UserError(f"no classifier: there is no tensor {_HEAD!r}", where=source.where)
    names = config.get("id2label")
    if names is None:
        return tuple(f"LABEL_{i}" for i in range(count))
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(count)}:
        raise UserError(f"id2label does not name the {count} scores that the head has", where=where)
    return tuple(str(names[str(i)]) for i in range(count))


def _config(model: SequenceClassifier) -> dict[str, Any]:
    config = config_of(model.spec)
    # transformers calls the decoder of Gemma 3 without images Gemma3Text here, and Gemma3 where it predicts tokens
    base = re.sub(r"(ForCausalLM|LMHeadModel|Decoder)$", "", config["architectures"][0])
    base += "Text" if config["model_type"].endswith("_text") else ""
    return {
        **config,
        "architectures": [f"{base}ForSequenceClassification"],
        "id2label": {str(i): label for i, label in enumerate(model.labels)},
        "label2id": {label: i for i, label in enumerate(model.labels)},
        "dtype": str(model.score.weight.dtype).removeprefix("torch."),
    }


def _pad_token(tokenizer: Tokenizer, vocab_size: int) -> str | None:
    """The tokenizer's own, if it ends no text; else a special token that stands for nothing in particular."""
    taken = {*tokenizer.eos_token_ids, tokenizer.bos_token_id}
    if tokenizer.pad_token and tokenizer.pad_token_id not in taken:
        return tokenizer.pad_token
    free = [tokenizer.token(i) for i in sorted(tokenizer.special_token_ids - taken) if i < vocab_size]
    named = [token for token in free if token and "pad" in token.lower()]
    return next(iter(named or reversed(free)), None)


def _name_pad(file: Path, pad: str | None) -> None:
    """Batches are filled up with what the config calls padding, or not at all."""
    config = {key: value for key, value in read_json(file).items() if key != "pad_token"}
    write_json(file, config | ({"pad_token": pad} if pad else {}))
