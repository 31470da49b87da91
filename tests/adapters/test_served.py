"""An adapter's directory beside a model that runs: what was trained, or one line that says why not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adapted_pairs import IDS, folder_of, logits, ours, shake
from intaglio.adapters.attach import attach
from intaglio.adapters.merge import merge
from intaglio.adapters.peft_files import load_adapter, save_adapter
from intaglio.adapters.quantize import quantize
from intaglio.adapters.served import read_updates
from intaglio.checkpoints.save import save_model
from intaglio.engine.adapted import Adapters
from intaglio.engine.packed import pack
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier, init_head
from intaglio.models.resize import grow_vocabulary
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.quantization import QuantizationSpec
from tiny_specs import ZOO
from toy_llms import random_model

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {}),
    "joined there": ("gpt2", {}),
    "joined there, in its own way": ("neox", {}),
    "sandwich": ("gemma", {}),
    "one of three": ("llama", {"target_modules": ("k_proj", "up_proj")}),
    "patterns": (
        "llama",
        {"rank_pattern": {"q_proj": 5}, "alpha_pattern": {"layers.1.mlp.up_proj": 2.0}, "use_rslora": True},
    ),
    "dora": ("llama", {"use_dora": True}),
    "dora of embeddings": ("llama", {"use_dora": True, "target_modules": ("v_proj", "embed_tokens", "lm_head")}),
    "pissa": ("llama", {"init_lora_weights": "pissa", "target_modules": ("q_proj", "embed_tokens")}),
    "olora": ("gpt2", {"init_lora_weights": "olora"}),
    "bias of b": ("llama", {"lora_bias": True}),
    "biases of the targets": ("llama", {"bias": "lora_only"}),
    "biases of all": ("gpt2", {"bias": "all", "use_dora": True}),
    "head": ("llama", {"target_modules": ("q_proj", "lm_head")}),
    "tied": ("tied", {"target_modules": ("q_proj", "embed_tokens")}),
    "half of a tie": ("tied", {"target_modules": ("lm_head",), "ensure_weight_tying": False}),
    "rows": ("llama", {"trainable_token_indices": (5, 3, 60)}),
    "tied rows": ("tied", {"trainable_token_indices": (3, 9)}),
    "saved": ("llama", {"modules_to_save": ("embed_tokens", "lm_head", "model.norm", "o_proj"), "target_modules": ()}),
    "saved among joined": ("llama", {"modules_to_save": ("k_proj",), "target_modules": ("q_proj", "v_proj")}),
    "tied saved": ("tied", {"modules_to_save": ("embed_tokens",)}),
}


def directory_of(path: Path, family: str, seed: int = 0, **settings: Any) -> tuple[Path, Any]:
    """An adapter as PEFT has it, and the model with it on; alpha is never r."""
    model = ours(family)
    attach(model, LoRASpec(r=3, lora_alpha=12, **settings), seed=seed)
    shake(model, seed)
    save_adapter(model, path)
    return path, model.eval()


def under(model: Any, name: str, adapters: Adapters, ids: Tensor = IDS) -> Tensor:
    with adapters.alone(name):
        return torch.cat([logits(model, row[None]) for row in ids])


@pytest.mark.parametrize("case", VARIANTS)
def test_every_variant_says_what_the_adapted_model_says(case: str, tmp_path: Path) -> None:
    family, settings = VARIANTS[case]
    path, adapted = directory_of(tmp_path / "adapter", family, **settings)
    for model, bound in ((ours(family), 1e-5), (pack(ours(family), "int8"), 0.1)):  # of what the adapter changes
        base, adapters = logits(model), Adapters(model)
        adapters.load("a", read_updates(path, model, folder_of(family)))
        assert torch.equal(logits(model), base)
        expected = logits(adapted)
        assert (under(model, "a", adapters) - expected).norm() < bound * (expected - base).norm()
        adapters.unload("a")
        assert torch.equal(logits(model), base)


@pytest.mark.parametrize("case", ["plain", "joined there", "dora", "tied saved", "rows"])
def test_beside_the_model_it_says_what_the_merged_model_says(case: str, tmp_path: Path) -> None:
    family, settings = VARIANTS[case]
    path, adapted = directory_of(tmp_path / "adapter", family, **settings)
    merge(adapted)
    model = ours(family)
    adapters = Adapters(model)
    adapters.load("a", read_updates(path, model, folder_of(family)))
    torch.testing.assert_close(under(model, "a", adapters), logits(adapted), atol=1e-5, rtol=1e-5)


def test_a_classifier_has_its_own_head(tmp_path: Path) -> None:
    base = SequenceClassifier(ours("llama"), 3)
    init_head(base, seed=1)
    attach(base, LoRASpec(r=3, lora_alpha=12))
    shake(base)
    save_adapter(base, tmp_path / "adapter")
    model = SequenceClassifier(ours("llama"), 3).eval()
    adapters = Adapters(model)
    adapters.load("a", read_updates(tmp_path / "adapter", model, folder_of("llama")))
    torch.testing.assert_close(under(model, "a", adapters), logits(base), atol=1e-5, rtol=1e-5)
    with pytest.raises(UserError, match="another kind of model: it scores 3 labels"):
        read_updates(tmp_path / "adapter", ours("llama"), folder_of("llama"))
    plain, _ = directory_of(tmp_path / "plain", "llama")
    with pytest.raises(UserError, match="another kind of model: it makes text"):
        read_updates(plain, model, folder_of("llama"))


@pytest.mark.parametrize("targets", [("w1", "q_proj"), ("gate",)])
def test_experts_and_routers_are_refused(targets: tuple[str, ...], tmp_path: Path) -> None:
    path, _ = directory_of(tmp_path / "adapter", "mixtral", target_modules=targets)
    with pytest.raises(UserError, match=r"cannot share a batch.*merge it: intaglio merge"):
        read_updates(path, ours("mixtral"), folder_of("mixtral"))


def test_the_rest_of_a_mixture_is_served(tmp_path: Path) -> None:
    path, adapted = directory_of(tmp_path / "adapter", "mixtral", target_modules=("q_proj", "o_proj"))
    model = ours("mixtral")
    adapters = Adapters(model)
    adapters.load("a", read_updates(path, model, folder_of("mixtral")))
    torch.testing.assert_close(under(model, "a", adapters), logits(adapted), atol=1e-5, rtol=1e-5)


def test_what_latent_attention_takes_apart_is_refused(tmp_path: Path) -> None:
    save_model(random_model(ZOO["latent, compressed queries"]), tmp_path / "base")
    for targets, refused in ((("kv_b_proj",), True), (("q_a_proj", "q_b_proj", "kv_a_proj"), False)):
        model = random_model(ZOO["latent, compressed queries"])
        attach(model, LoRASpec(r=2, lora_alpha=6, target_modules=targets))
        shake(model)
        save_adapter(model, tmp_path / "adapter")
        plain = random_model(model.spec)
        if refused:
            with pytest.raises(UserError, match="kv_b_proj: its update cannot share a batch"):
                read_updates(tmp_path / "adapter", plain, tmp_path / "base")
        else:
            adapters = Adapters(plain)
            adapters.load("a", read_updates(tmp_path / "adapter", plain, tmp_path / "base"))
            torch.testing.assert_close(under(plain, "a", adapters), logits(model), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"modules_to_save": ("embed_tokens", "lm_head")}])
def test_a_larger_vocabulary_is_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    model = ours("llama")
    grow_vocabulary(model, model.spec.vocab_size, model.spec.vocab_size + 2)
    attach(model, LoRASpec(r=3, lora_alpha=12, **settings))
    save_adapter(model, tmp_path / "adapter", base=str(folder_of("llama")))
    with pytest.raises(UserError, match=r"63 tokens, and the model 61.*merge it"):
        read_updates(tmp_path / "adapter", ours("llama"), folder_of("llama"))


def test_what_no_model_could_load_is_refused_in_the_same_words(tmp_path: Path) -> None:
    path, _ = directory_of(tmp_path / "adapter", "gemma")
    with pytest.raises(UserError) as loaded:
        load_adapter(ours("llama"), path)
    with pytest.raises(UserError) as served:
        read_updates(path, ours("llama"), folder_of("llama"))
    assert str(served.value) == str(loaded.value)
    with pytest.raises(UserError, match="no adapter: there is no"):
        read_updates(tmp_path, ours("llama"), folder_of("llama"))


def test_a_base_that_was_four_bits_is_said(tmp_path: Path) -> None:
    model: Decoder = ours("llama")
    quantize(model, QuantizationSpec())
    attach(model, LoRASpec(r=3, lora_alpha=12))
    save_adapter(model, tmp_path / "adapter")
    updates = read_updates(tmp_path / "adapter", ours("llama"), folder_of("llama"))
    assert [note for note in updates.notes if "trained beside a base of 4 bits" in note]
