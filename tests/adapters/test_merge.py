"""Merging: the same logits, nothing dropped, the written directory opens elsewhere."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from adapted_pairs import logits, ours, shake
from intaglio.adapters.attach import attach, wrappers
from intaglio.adapters.merge import merge, merge_directories, requantized_error
from intaglio.adapters.models import load_model
from intaglio.adapters.peft_files import save_adapter
from intaglio.adapters.quantize import quantize
from intaglio.checkpoints.save import save_model
from intaglio.errors import UserError
from intaglio.parts.lora import LoRALinear, LowRank
from intaglio.parts.nf4 import dequantize, quantize_nf4
from intaglio.specs.adapter import LoRASpec
from intaglio.specs.quantization import QuantizationSpec

SPECS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("llama", {}),
    "rslora": ("llama", {"use_rslora": True}),
    "dora": ("llama", {"use_dora": True, "target_modules": ("q_proj", "down_proj", "embed_tokens", "lm_head")}),
    "pissa": ("llama", {"init_lora_weights": "pissa"}),
    "biases": ("llama", {"bias": "all", "modules_to_save": ("lm_head", "model.norm"), "trainable_token_indices": ()}),
    "tied": ("tied", {"target_modules": ("q_proj", "embed_tokens")}),
    "tied tokens": ("tied", {"trainable_token_indices": (3, 9)}),
    "tied saved": ("tied", {"modules_to_save": ("embed_tokens",)}),
    "joined": ("gpt2", {"bias": "all", "lora_bias": True}),
    "experts": ("mixtral", {"target_modules": ("w1", "w2", "w3", "gate", "q_proj")}),
}


def adapted(family: str, seed: int = 0, **settings: Any) -> Any:
    """Ours with a moved adapter; alpha is never r."""
    model = ours(family)
    attach(model, LoRASpec(r=3, lora_alpha=12, **settings))
    shake(model, seed)
    return model.eval()


@pytest.mark.parametrize("case", SPECS)
def test_merged_says_the_same(case: str) -> None:
    family, settings = SPECS[case]
    model = adapted(family, **settings)
    expected = logits(model)
    assert not merge(model)
    assert not list(wrappers(model))
    torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=1e-5)


def test_a_half_of_a_tie_unties() -> None:
    model = adapted("tied", modules_to_save=("lm_head",), ensure_weight_tying=False)
    expected = logits(model)
    assert merge(model)
    assert not model.spec.tie_embeddings
    torch.testing.assert_close(logits(model), expected, atol=1e-5, rtol=1e-5)


def test_a_bias_is_scaled() -> None:
    """peft#2486, #3741: b += s*l, not l."""
    linear = LoRALinear(nn.Linear(4, 4))
    spec = LoRASpec(r=4, lora_alpha=32, lora_bias=True)
    piece = LowRank((4, 4), 4, spec.scale("x"), spec, linear.base.weight)
    assert piece.lora_bias is not None
    nn.init.ones_(piece.lora_bias)
    linear.adapters["default"], linear.active = piece, ("default",)
    before, x = linear.base.bias.detach().clone(), torch.randn(2, 4)
    expected = linear(x)
    merged = linear.merged()
    assert isinstance(merged, nn.Linear)
    assert torch.equal(merged.bias, before + 8)
    torch.testing.assert_close(merged(x), expected)


def test_a_bias_without_a_place_is_not_dropped() -> None:
    with pytest.raises(UserError, match=r"has none to add it to"):
        merge(adapted("tied", lora_bias=True))


def test_four_bits_merge_as_what_they_stand_for() -> None:
    model = ours("llama")
    quantize(model, QuantizationSpec())
    attach(model, LoRASpec(r=3, lora_alpha=12, target_modules=("q_proj",)))
    shake(model)
    wrapper = model.layers[0].attention.q_proj
    piece = wrapper.adapters["default"]
    expected = wrapper.base.dequantized() + 4 * piece.lora_B @ piece.lora_A
    before = logits(model)
    merge(model)
    torch.testing.assert_close(model.layers[0].attention.q_proj.weight, expected, atol=1e-6, rtol=0)
    assert isinstance(model.layers[1].feed_forward.down_proj, nn.Linear)
    torch.testing.assert_close(logits(model), before, atol=1e-5, rtol=1e-5)


def test_what_four_bits_would_take_again_is_said() -> None:
    """peft#2321: an update smaller than the steps of 4 bits is lost when it is rounded to them."""
    model = ours("llama")
    quantize(model, QuantizationSpec())
    attach(model, LoRASpec(r=3, lora_alpha=12, target_modules=("q_proj",)))
    assert requantized_error(model) is None  # nothing given yet
    shake(model)
    lost, given = [], []
    for layer in model.layers:
        base, piece = layer.attention.q_proj.base, layer.attention.q_proj.adapters["default"]
        merged = (base.dequantized() + 4 * piece.lora_B @ piece.lora_A).detach()
        again = quantize_nf4(merged.detach(), base.blocksize, double_quant=True)
        lost.append((dequantize(again, torch.float32) - merged).square().sum())
        given.append((merged - base.dequantized()).square().sum())
    expected = float(torch.stack(lost).sum() / torch.stack(given).sum()) ** 0.5
    assert requantized_error(model) == pytest.approx(expected, rel=1e-4)
    assert expected < 0.5
    with torch.no_grad():
        for layer in model.layers:
            layer.attention.q_proj.adapters["default"].lora_B.mul_(1e-3)
    error = requantized_error(model)
    assert error is not None
    assert error > 0.9  # next to all of it


def test_the_update_taken_off_gives_the_weights_back() -> None:
    model = adapted("llama")
    part = model.layers[0].attention.q_proj
    before, delta = part.base.weight.detach().clone(), part.adapters["default"].delta().detach()
    merge(model)
    torch.testing.assert_close(model.layers[0].attention.q_proj.weight - delta, before, atol=1e-6, rtol=0)


@pytest.mark.parametrize("quantized", [False, True])
def test_directories(tmp_path: Path, quantized: bool) -> None:
    model = ours("llama")
    save_model(model, tmp_path / "base", generation_config={"temperature": 0.3, "do_sample": True})
    if quantized:
        quantize(model, QuantizationSpec())
    attach(model, LoRASpec(r=3, lora_alpha=12))
    shake(model)
    save_adapter(model, tmp_path / "adapter", base=str(tmp_path / "base"))
    report = merge_directories(tmp_path / "base", tmp_path / "adapter", tmp_path / "out")
    assert report.quantized_base == quantized
    assert (report.requantized_error is None) != quantized
    assert report.max_difference < 1e-4
    assert report.same_choice == report.tokens
    assert '"temperature": 0.3' in (tmp_path / "out" / "generation_config.json").read_text()
    torch.testing.assert_close(logits(load_model(tmp_path / "out")), logits(model), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(logits(load_model(tmp_path / "base")), logits(model), atol=1e-2)


def test_bf16_is_rounded_once() -> None:
    model = ours("llama").to(torch.bfloat16)
    attach(model, LoRASpec(r=3, lora_alpha=6, target_modules=("q_proj", "v_proj")))
    shake(model)
    linear = model.layers[0].attention.q_proj
    piece, weight = linear.adapters["default"], linear.base.weight
    assert piece.lora_A.dtype == torch.float32
    expected = (weight.float() + 2 * piece.lora_B @ piece.lora_A).to(torch.bfloat16)
    before = logits(model)
    merge(model)
    assert torch.equal(model.layers[0].attention.q_proj.weight, expected)
    gap = (logits(model).float() - before.float()).norm() / before.float().norm()
    assert gap < 1e-2
