"""Tiny models of several families as transformers builds them, and ours of the same weights: to put adapters on."""

import copy
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from torch import Tensor

from intaglio.checkpoints.load import load_directory
from zoo import VOCAB, Animal, build, random_ids

__all__ = ["FAMILIES", "IDS", "folder_of", "logits", "ours", "shake", "theirs"]

_BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
}
_GPT2 = {"vocab_size": VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}
_NEOX = {key: value for key, value in _BASE.items() if key != "num_key_value_heads"} | {"num_attention_heads": 2}
_GEMMA = {**_BASE, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]}

FAMILIES = {
    "llama": Animal("llama", "llama", "LlamaForCausalLM", {**_BASE, "attention_bias": True}),
    "tied": Animal("tied", "llama", "LlamaForCausalLM", {**_BASE, "tie_word_embeddings": True}),
    "gpt2": Animal("gpt2", "gpt2", "GPT2LMHeadModel", _GPT2),
    "neox": Animal("neox", "gpt_neox", "GPTNeoXForCausalLM", _NEOX),
    "mixtral": Animal("mixtral", "mixtral", "MixtralForCausalLM", {**_BASE, "num_local_experts": 4}),
    "gemma": Animal("gemma", "gemma3_text", "Gemma3ForCausalLM", _GEMMA),
}

IDS = random_ids(2, 9)


@cache
def _made(family: str) -> tuple[Any, Path]:
    folder = Path(mkdtemp())
    model = build(FAMILIES[family])
    model.save_pretrained(folder)
    return model, folder


def theirs(family: str) -> Any:
    """transformers' model, a new copy."""
    return copy.deepcopy(_made(family)[0])


def folder_of(family: str) -> Path:
    """The directory that transformers wrote."""
    return _made(family)[1]


def ours(family: str) -> Any:
    """Ours of the same weights."""
    return load_directory(_made(family)[1])


def shake(model: Any, seed: int = 0) -> None:
    """Moves everything that trains, so that nothing is zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)


@torch.no_grad()
def logits(model: Any, ids: Tensor = IDS) -> Tensor:
    """Ours or transformers', wrapped or not: (B, T, V)."""
    out = model.eval()(ids)
    return out if isinstance(out, Tensor) else out.logits
