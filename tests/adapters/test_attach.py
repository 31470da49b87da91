"""LoRA on a model: the same at the start, nothing else trains, any number of adapters, off again."""

from typing import Any

import pytest
import torch

from adapted_pairs import IDS, logits, ours, shake
from intaglio.adapters.attach import (
    adapter_state,
    attach,
    detach,
    disabled,
    mixed,
    set_active,
    trainable_share,
    wrappers,
)
from intaglio.adapters.ranks import effective_rank, update_values
from intaglio.errors import UserError
from intaglio.specs.adapter import LoRASpec

STARTS: dict[str, dict[str, Any]] = {
    "default": {},
    "gaussian": {"init_lora_weights": "gaussian"},
    "pissa": {"init_lora_weights": "pissa"},
    "olora": {"init_lora_weights": "olora"},
    "dora": {"use_dora": True},
    "whole": {"bias": "all", "modules_to_save": ("embed_tokens", "lm_head")},
    "rows": {"trainable_token_indices": (1, 5), "lora_bias": True},
    "embeddings": {"target_modules": ("embed_tokens", "lm_head")},
}


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("start", STARTS)
def test_nothing_changes_at_the_start(family: str, start: str) -> None:
    settings = dict(STARTS[start])
    names = {"embed_tokens": "wte"} if family == "gpt2" else {}
    for key in ("modules_to_save", "target_modules"):
        if key in settings:
            settings[key] = tuple(names.get(name, name) for name in settings[key])
    model = ours(family)
    base = logits(model)
    attach(model, LoRASpec(r=3, lora_alpha=12, **settings))
    if start == "rows":  # a product of a few rows of the output matrix is summed up in another order
        torch.testing.assert_close(logits(model), base, atol=1e-6, rtol=1e-6)
    else:
        assert torch.equal(logits(model), base)
    shake(model)
    assert (logits(model) - base).abs().max() > 0.01
    with disabled(model):
        assert torch.equal(logits(model), base)
    detach(model, "default")
    assert torch.equal(logits(model), base)
    assert not list(wrappers(model))


def test_only_the_adapter_has_gradients() -> None:
    model = ours("mixtral")
    attach(model, LoRASpec(r=3, lora_alpha=12))
    shake(model)
    model(IDS).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == (".adapters." in name), name
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all()
            assert parameter.grad.abs().max() > 0, name
    trainable, total = trainable_share(model)
    assert trainable == sum(tensor.numel() for tensor in adapter_state(model, "default").values()) < total


def test_an_update_has_at_most_its_rank() -> None:
    model = ours("llama")
    attach(model, LoRASpec(r=3, lora_alpha=12, rank_pattern={"v_proj": 2}))
    shake(model)
    for path, wrapper in wrappers(model):
        piece: Any = wrapper.adapters["default"]
        delta = piece.delta()
        assert torch.linalg.matrix_rank(delta, rtol=1e-4) <= (2 if path.endswith("v_proj") else 3)
        values = torch.linalg.svdvals(delta)[: piece.rank]
        torch.testing.assert_close(
            update_values(piece.lora_A, piece.lora_B) * piece.scale, values, rtol=1e-4, atol=1e-5
        )


def test_effective_rank_counts_equal_values() -> None:
    assert effective_rank(torch.tensor([2.0, 2.0, 2.0, 0.0])) == pytest.approx(3)
    assert effective_rank(torch.zeros(4)) == 0


def test_rank_stabilised_is_a_larger_alpha() -> None:
    """alpha / sqrt(16) is 4 alpha / 16."""
    assert LoRASpec(r=16, lora_alpha=5, use_rslora=True).scale("x") == LoRASpec(r=16, lora_alpha=20).scale("x")


def test_adapters_are_switched_and_mixed() -> None:
    model = ours("llama")
    base = logits(model)
    attach(model, LoRASpec(r=3, lora_alpha=12), "one")
    shake(model, 1)
    attach(model, LoRASpec(r=2, target_modules=("q_proj", "embed_tokens"), modules_to_save=("lm_head",)), "two")
    shake(model, 2)
    alone = {}
    for name in ("one", "two"):
        set_active(model, name)
        alone[name] = logits(model)
    assert not torch.allclose(alone["one"], alone["two"], atol=1e-2)
    ids = IDS[[0, 1, 0, 1]]
    with mixed(model, ["one", None, "two", "one"]):
        together = logits(model, ids)
    expected = torch.stack((alone["one"][0], base[1], alone["two"][0], alone["one"][1]))
    torch.testing.assert_close(together, expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(UserError, match=r"no adapter 'three'; known: one, two"):
        set_active(model, "three")


def test_dora_scales_rows_with_dropout_in_both_terms() -> None:
    model = ours("llama").train()
    attach(model, LoRASpec(r=3, lora_dropout=0.5, use_dora=True, target_modules=("q_proj",)))
    shake(model)
    torch.manual_seed(0)
    first = model(IDS)
    assert not torch.allclose(first, model(IDS))
    first.square().mean().backward()
    (magnitude, *_) = [p for name, p in model.named_parameters() if name.endswith("lora_magnitude_vector")]
    assert magnitude.grad is not None
    assert magnitude.grad.abs().min() > 0


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("llama", {"target_modules": ("q_prj",)}, r"target_modules: no module is called 'q_prj'; did you mean q_proj"),
        ("llama", {"target_modules": ("lm_head",), "lora_dropout": 0.1}, r"no dropout can stand before the output"),
        ("llama", {"modules_to_save": ("q_proj",)}, r"cannot be both a target and trained whole"),
        ("llama", {"trainable_token_indices": (99,)}, r"token 99 of a vocabulary of 61"),
        ("llama", {"target_modules": ("q_proj",), "exclude_modules": ("q_proj",)}, r"no module is left"),
        ("mixtral", {"use_dora": True}, r"use_dora: not for a mixture's experts"),
        ("tied", {"use_dora": True, "target_modules": ("embed_tokens",)}, r"use_dora: tied embeddings"),
    ],
)
def test_what_cannot_be_is_said(family: str, settings: dict[str, Any], message: str) -> None:
    model = ours(family)
    with pytest.raises(UserError, match=message):
        attach(model, LoRASpec(**settings))
    assert not list(wrappers(model))
