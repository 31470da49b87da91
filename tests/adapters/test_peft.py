"""PEFT directories: what PEFT writes we read, what we write PEFT reads, and the logits are the same."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file

from adapted_pairs import logits, ours, shake, theirs
from intaglio.adapters.attach import attach, wrappers
from intaglio.adapters.models import load_model
from intaglio.adapters.peft_files import load_adapter, save_adapter
from intaglio.checkpoints.save import save_model
from intaglio.errors import UserError
from intaglio.models.heads import SequenceClassifier
from intaglio.specs.adapter import LoRASpec
from intaglio.text.tokenizer import Tokenizer
from toy_tokenizers import byte_level

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "all-linear": ("llama", {"target_modules": "all-linear"}),
    "patterns": (
        "llama",
        {
            "target_modules": ["q_proj", "v_proj", "down_proj"],
            "rank_pattern": {"q_proj": 3, r"layers\.1\.mlp\.down_proj": 1},
            "alpha_pattern": {"v_proj": 7, r"layers\.0\.self_attn\.q_proj": 5},
        },
    ),
    "expression": ("llama", {"target_modules": r".*\.1\..*(q|v)_proj"}),
    "rslora": ("llama", {"target_modules": ["q_proj", "up_proj"], "use_rslora": True, "rank_pattern": {"q_proj": 3}}),
    "dora": ("llama", {"target_modules": ["q_proj", "up_proj"], "use_dora": True}),
    "dora embedding": ("llama", {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True}),
    "pissa": ("llama", {"target_modules": ["q_proj", "down_proj"], "init_lora_weights": "pissa"}),
    "olora": ("llama", {"target_modules": ["q_proj", "down_proj"], "init_lora_weights": "olora"}),
    "gaussian": ("llama", {"target_modules": ["q_proj"], "init_lora_weights": "gaussian"}),
    "lora_bias": ("llama", {"target_modules": ["q_proj", "up_proj"], "lora_bias": True}),
    "bias lora_only": ("llama", {"target_modules": ["q_proj", "k_proj"], "bias": "lora_only"}),
    "bias all": ("llama", {"target_modules": ["q_proj"], "bias": "all", "modules_to_save": ["lm_head"]}),
    "saved": ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head", "k_proj"]}),
    "tokens": (
        "llama",
        {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [3, 7], "lm_head": [3, 7]}},
    ),
    "embeddings": ("llama", {"target_modules": ["embed_tokens", "lm_head", "v_proj"]}),
    "tied tokens": ("tied", {"target_modules": ["q_proj"], "trainable_token_indices": [3, 7]}),
    "tied embeddings": ("tied", {"target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True}),
    "untied embeddings": ("tied", {"target_modules": ["embed_tokens", "q_proj"]}),
    "tied saved": (
        "tied",
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    ),
    "untied head": ("tied", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
    "gpt2": ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"], "lora_bias": True}),
    "gpt2 biases": ("gpt2", {"target_modules": ["c_attn"], "bias": "all"}),
    "gpt2 dora": ("gpt2", {"target_modules": ["c_attn", "attn.c_proj"], "use_dora": True, "modules_to_save": ["wpe"]}),
    "neox": ("neox", {"target_modules": ["query_key_value", "dense"], "bias": "lora_only"}),
    "neox saved": ("neox", {"target_modules": ["dense_h_to_4h"], "modules_to_save": ["query_key_value"]}),
    "experts": ("mixtral", {"target_modules": ["q_proj", "w1", "w2", "w3"]}),
    "experts down": ("mixtral", {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.down_proj"]}),
    "experts all": ("mixtral", {"target_modules": "all-linear"}),
    "gemma": ("gemma", {"target_modules": ["embed_tokens", "o_proj"]}),
}
"""What PEFT is told; ours is read from what PEFT writes, and written again by us."""


def peft_model(family: str, settings: dict[str, Any]) -> Any:
    """PEFT's, every trained number moved."""
    torch.manual_seed(1)
    model = get_peft_model(theirs(family), LoraConfig(r=2, lora_alpha=6, **settings))
    shake(model)
    return model


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("case", CASES)
def test_read_and_written(case: str, tmp_path: Path) -> None:
    family, settings = CASES[case]
    there = peft_model(family, settings)
    expected = logits(there)
    there.save_pretrained(tmp_path / "theirs")
    here = ours(family)
    base = logits(here)
    load_adapter(here, tmp_path / "theirs")
    assert (expected - base).abs().max() > 0.01
    torch.testing.assert_close(logits(here), expected, atol=1e-5, rtol=1e-5)

    save_adapter(here, tmp_path / "ours")
    again = PeftModel.from_pretrained(theirs(family), tmp_path / "ours")
    result = again.load_adapter(tmp_path / "ours", "default")
    assert result.missing_keys == []
    assert result.unexpected_keys == []
    torch.testing.assert_close(logits(again), expected, atol=1e-5, rtol=1e-5)


def test_experts_one_by_one(tmp_path: Path) -> None:
    """As files were before transformers 5; PEFT converts them itself."""
    model = ours("mixtral")
    attach(model, LoRASpec(r=2, lora_alpha=6, target_modules=("w1", "w2", "w3")))
    shake(model)
    tensors = {}
    for layer, block in enumerate(model.layers):
        stacks: Any = block.feed_forward.experts.adapters["default"]
        for theirs_name, stack in {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.items():
            for expert in range(4):
                key = f"base_model.model.model.layers.{layer}.block_sparse_moe.experts.{expert}.{theirs_name}"
                tensors[f"{key}.lora_A.weight"] = stacks[stack].lora_A[expert].detach().clone()
                tensors[f"{key}.lora_B.weight"] = stacks[stack].lora_B[expert].detach().clone()
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    config = LoraConfig(r=2, lora_alpha=6, target_modules=["w1", "w2", "w3"], task_type="CAUSAL_LM")
    config.save_pretrained(str(tmp_path))
    there = PeftModel.from_pretrained(theirs("mixtral"), tmp_path)
    torch.testing.assert_close(logits(there), logits(model), atol=1e-5, rtol=1e-5)
    again = ours("mixtral")
    load_adapter(again, tmp_path)
    torch.testing.assert_close(logits(again), logits(model), atol=1e-6, rtol=1e-6)


def test_all_that_ends_a_text_is_kept(tmp_path: Path) -> None:
    model = ours("llama")
    attach(model, LoRASpec(r=2))
    save_adapter(model, tmp_path / "adapter", tokenizer=Tokenizer(byte_level(), eos_token_ids={0, 2}))
    assert Tokenizer.from_directory(tmp_path / "adapter").eos_token_ids == {0, 2}


def test_a_classifier_takes_its_head_along(tmp_path: Path) -> None:
    model = SequenceClassifier(ours("llama"), 3)
    model.drop_outputs()
    save_model(ours("llama"), tmp_path / "base")
    attach(model, LoRASpec(r=2))
    shake(model)
    save_adapter(model, tmp_path / "adapter")
    again = load_model(tmp_path / "base", adapter=tmp_path / "adapter")
    assert torch.equal(logits(again), logits(model))
    with pytest.raises(UserError, match=r"'score.weight' is left over"):
        load_adapter(ours("llama"), tmp_path / "adapter")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, r"peft_type 'IA3' is not LORA"),
        ({"layers_to_transform": [1]}, r"layers_to_transform: \[1\] is not supported"),
        ({"init_lora_weights": "loftq"}, r"changed the base"),
        ({"target_modules": ["q_proj"]}, r"is left over"),
        ({"target_modules": ["q_proj", "v_proj", "k_proj"]}, r"k_proj.lora_A.weight' is missing"),
        ({"r": 4}, r"has shape \[2, 16\], the model asks for \[4, 16\]"),
    ],
)
def test_what_is_not_understood_is_said(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    model = ours("llama")
    attach(model, LoRASpec(r=2, target_modules=("q_proj", "v_proj")))
    save_adapter(model, tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    other = ours("llama")
    with pytest.raises(UserError, match=message):
        load_adapter(other, tmp_path / "adapter")
    assert not list(wrappers(other))
