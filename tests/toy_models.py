"""Tiny models of ours on disk, and ways to spoil what was written."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from intaglio.checkpoints.save import save_model
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.specs.families import read_config

__all__ = ["LLAMA_CONFIG", "change_config", "change_tensors", "toy_model", "user_error", "write_toy"]

LLAMA_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
}


def toy_model(**changes: Any) -> Decoder:
    """A llama of two layers, or what `changes` to its config make of it; random weights, large enough to matter."""
    torch.manual_seed(0)
    model = Decoder(read_config({**LLAMA_CONFIG, **changes})).eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.2
    return model


def write_toy(directory: Path, **changes: Any) -> Decoder:
    """Saves a toy model there and returns it."""
    model = toy_model(**changes)
    save_model(model, directory)
    return model


def change_config(directory: Path, **changes: Any) -> None:
    """Sets keys of `config.json`; a value of `...` removes the key."""
    file = directory / "config.json"
    config = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def change_tensors(directory: Path, **changes: Tensor | None) -> None:
    """Sets tensors of `model.safetensors`, `__` in a keyword standing for a dot; None removes one."""
    file = directory / "model.safetensors"
    tensors: dict[str, Any] = {**load_file(file), **{key.replace("__", "."): t for key, t in changes.items()}}
    save_file({key: tensor for key, tensor in tensors.items() if tensor is not None}, file, {"format": "pt"})


@contextmanager
def user_error(*words: str) -> Iterator[None]:
    """Expects a `UserError` of one line that names every one of `words`."""
    with pytest.raises(UserError) as caught:
        yield
    line = str(caught.value)
    assert "\n" not in line, line
    assert not [word for word in words if word not in line], line
