"""An adapter of a model that has grown: the base gets the same rows, or both sizes are named."""

from pathlib import Path
from typing import Any

import pytest
import torch

from intaglio.adapters.attach import attach
from intaglio.adapters.peft_files import load_adapter, save_adapter
from intaglio.checkpoints.load import load_directory
from intaglio.checkpoints.save import save_model
from intaglio.errors import UserError
from intaglio.models.resize import grow_vocabulary
from intaglio.specs.adapter import LoRASpec
from tiny_specs import decoder
from toy_llms import random_model

IDS = torch.tensor([[1, 8, 3, 9, 0]])
WAYS: dict[str, dict[str, Any]] = {
    "the base's rows stay the mean": {},
    "new rows train": {"trainable_token_indices": (8, 9)},
    "both matrices train": {"modules_to_save": ("embed_tokens", "lm_head")},
}


def base(path: Path, *, tied: bool) -> Path:
    save_model(random_model(decoder(vocab_size=8, tie_embeddings=tied)), path)
    return path


@torch.no_grad()
def trained(model: Any) -> Any:
    """With everything that trains moved."""
    dice = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        if weight.requires_grad:
            weight += 0.1 * torch.randn(weight.shape, generator=dice)
    return model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_the_base_gets_the_rows_that_it_lacks_bit_for_bit(way: str, tied: bool, tmp_path: Path) -> None:
    folder = base(tmp_path / "base", tied=tied)
    model = load_directory(folder)
    grow_vocabulary(model, 8, 10)
    attach(model, LoRASpec(r=2, lora_alpha=8, ensure_weight_tying=tied, **WAYS[way]))
    save_adapter(trained(model), tmp_path / "adapter", base=str(folder))
    again = load_directory(folder)
    load_adapter(again, tmp_path / "adapter")
    assert again.spec.vocab_size == 10
    with torch.no_grad():
        assert torch.equal(again(IDS), model(IDS))


def test_a_base_that_is_larger_than_the_file_is_named_with_both_sizes(tmp_path: Path) -> None:
    folder = base(tmp_path / "base", tied=True)
    model = load_directory(folder)
    grow_vocabulary(model, 8, 10)
    attach(model, LoRASpec(r=2))
    save_adapter(model, tmp_path / "adapter", base=str(folder))
    larger = load_directory(folder)
    grow_vocabulary(larger, 8, 12)
    with pytest.raises(UserError, match="10 rows of embeddings for a model of 12"):
        load_adapter(larger, tmp_path / "adapter")
