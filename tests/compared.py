"""Pairs and judged answers as ids, ragged, and tiny models to compare them: what tests of preferences stand on.

Padding is the EOS where others pad, so that whoever finds padding by its id is found out.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from intaglio.checkpoints.load import load_directory
from intaglio.models.decoder import Decoder
from intaglio.training.batching.forks import ForkedExample
from toy_llms import save_toy

__all__ = ["EOS", "gradients_of", "judged", "pairs", "policy_folder", "shaken", "toy_decoder", "triples"]

EOS = 2
_SIZES = ((5, 4, 6), (1, 2, 1), (9, 1, 3), (3, 7, 2), (2, 3, 3))


def triples(count: int = 5, seed: int = 0) -> list[tuple[list[int], list[int], list[int]]]:
    """Prompt, chosen and rejected, each answer ended by the EOS."""
    dice = np.random.default_rng(seed)

    def words(length: int) -> list[int]:
        return dice.integers(3, 300, length).tolist()

    sizes = [_SIZES[i % len(_SIZES)] for i in range(count)]
    return [(words(p), [*words(c), EOS], [*words(r), EOS]) for p, c, r in sizes]


def pairs(count: int = 5, seed: int = 0, **fields: Any) -> list[ForkedExample]:
    """The same as documents that fork; `fields` go to every one."""
    return [
        _forked(prompt, [chosen, rejected], i, **fields) for i, (prompt, chosen, rejected) in _numbered(count, seed)
    ]


def judged(count: int = 5, seed: int = 0) -> list[ForkedExample]:
    """Their chosen answers, of which every other one was wanted."""
    return [_forked(prompt, [answer], i, desirable=i % 2 == 0) for i, (prompt, answer, _) in _numbered(count, seed)]


def _numbered(count: int, seed: int) -> list[tuple[int, tuple[list[int], list[int], list[int]]]]:
    return list(enumerate(triples(count, seed)))


def _forked(prompt: list[int], answers: list[list[int]], number: int, **fields: Any) -> ForkedExample:
    ids = np.array([*prompt, *(token for answer in answers for token in answer)], dtype=np.int32)
    scored = np.arange(len(ids)) >= max(len(prompt), 1)
    return ForkedExample(ids, scored, f"rows:{number + 1}", (len(prompt), *map(len, answers)), **fields)


def shaken(model: nn.Module, seed: int = 0, size: float = 0.05) -> nn.Module:
    """The model, every weight moved a little."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return model


def toy_decoder(folder: Path) -> Decoder:
    """A tiny decoder in fp32, as a new object."""
    model = load_directory(folder, "float32")
    assert isinstance(model, Decoder)
    return model.train()


def policy_folder(folder: Path) -> Path:
    """Writes a tiny LLaMA there."""
    return save_toy(folder, context=64)


def gradients_of(theirs: Any, folder: Path, load: Any = load_directory) -> dict[str, torch.Tensor]:
    """The gradients of a model of transformers by our names: they are saved as if they were its weights."""
    for parameter in theirs.parameters():
        parameter.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    theirs.save_pretrained(folder)
    return {name: p.detach() for name, p in load(folder).named_parameters()}
