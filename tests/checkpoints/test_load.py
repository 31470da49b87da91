"""A directory to a running model: every tensor accounted for, one at a time, or one line that says what is wrong."""

import json
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from intaglio.checkpoints.load import load_directory
from intaglio.checkpoints.save import save_model
from intaglio.checkpoints.sources import SafetensorsSource
from intaglio.models.decoder import Decoder
from toy_models import LLAMA_CONFIG, change_config, change_tensors, toy_model, user_error, write_toy

IDS = torch.arange(24).view(2, 12) % 61
Q, K = (f"model.layers.1.self_attn.{part}_proj.weight" for part in "qk")
GATE, UP = (f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up"))
ROUTED = {  # the one family with a buffer
    "model_type": "deepseek_v3",
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}


@torch.no_grad()
def logits(model: Decoder) -> Tensor:
    return model(IDS)


def test_loads_what_was_saved(tmp_path: Path) -> None:
    model = write_toy(tmp_path / "m")
    loaded = load_directory(tmp_path / "m")
    assert torch.equal(logits(loaded), logits(model))
    assert not loaded.training
    assert all(parameter.requires_grad for parameter in loaded.parameters())


@pytest.mark.parametrize("name", ["my-finetune-v2", "gpt2", "SmolLM2-135M"])
def test_a_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    """Case 1: what a model is stands in its config, never in its name."""
    model = write_toy(tmp_path / name)
    change_config(tmp_path / name, _name_or_path="somebody/else", architectures=["MyOwnForCausalLM"])
    assert torch.equal(logits(load_directory(tmp_path / name)), logits(model))


def test_tied_weights_are_one_tensor(tmp_path: Path) -> None:
    """Case 3."""
    write_toy(tmp_path / "m", tie_word_embeddings=True)
    loaded = load_directory(tmp_path / "m")
    assert loaded.lm_head.weight is loaded.embed_tokens.weight
    assert loaded.lm_head.weight.data_ptr() == loaded.embed_tokens.weight.data_ptr()
    loaded(IDS).sum().backward()  # and train as one
    assert loaded.lm_head.weight.grad is loaded.embed_tokens.weight.grad


def test_a_tied_file_may_hold_the_same_head_again(tmp_path: Path) -> None:
    model = write_toy(tmp_path / "m", tie_word_embeddings=True)
    change_tensors(tmp_path / "m", lm_head__weight=model.embed_tokens.weight.detach().clone())
    loaded = load_directory(tmp_path / "m")
    assert loaded.lm_head.weight is loaded.embed_tokens.weight
    assert torch.equal(logits(loaded), logits(model))


def test_a_tied_file_with_another_head_is_refused(tmp_path: Path) -> None:
    """Somebody trained that head; dropping it in silence would lose it."""
    write_toy(tmp_path / "m", tie_word_embeddings=True)
    change_tensors(tmp_path / "m", lm_head__weight=torch.randn(61, 32))
    with user_error("lm_head.weight", "tie_word_embeddings"):
        load_directory(tmp_path / "m")


@pytest.mark.parametrize("pair", [(Q, K), (GATE, UP)])
def test_swapped_tensors_pass_every_check_but_parity(tmp_path: Path, pair: tuple[str, str]) -> None:
    """Case 5: keys and shapes fit, nothing is left over, and the model is another; only logits can tell."""
    model = write_toy(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    tensors = load_file(file)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    one, other = pair
    tensors[one], tensors[other] = tensors[other], tensors[one]
    assert {name: tensor.shape for name, tensor in tensors.items()} == shapes
    save_file(tensors, file)
    loaded = load_directory(tmp_path / "m")
    assert (logits(loaded) - logits(model)).abs().max() > 1e-3


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module."])
def test_wrappers_prefixes_come_off(tmp_path: Path, prefix: str) -> None:
    """Case 6: `torch.compile` and DDP leave their names in what they save."""
    model = write_toy(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    save_file({prefix + name: tensor for name, tensor in load_file(file).items()}, file)
    assert torch.equal(logits(load_directory(tmp_path / "m")), logits(model))


def test_compiled_layers_prefixes_come_off(tmp_path: Path) -> None:
    model = write_toy(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    renamed = {name.replace("layers.0.", "layers.0._orig_mod."): tensor for name, tensor in load_file(file).items()}
    save_file(renamed, file)
    assert torch.equal(logits(load_directory(tmp_path / "m")), logits(model))


@pytest.mark.parametrize(
    "config",
    [
        {"tie_word_embeddings": True},
        {
            "model_type": "gpt2",
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            **dict.fromkeys(set(LLAMA_CONFIG) - {"model_type", "vocab_size"}),
        },
    ],
)
def test_base_models_need_no_prefix(tmp_path: Path, config: dict[str, object]) -> None:
    """Files of `GPT2Model` and its like (gpt2 itself on the hub) name tensors without `transformer.` or `model.`."""
    model = toy_model(**{key: value for key, value in config.items() if value is not None}, **_absent(config))
    save_model(model, tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    save_file({name.split(".", 1)[1]: tensor for name, tensor in load_file(file).items()}, file)
    assert torch.equal(logits(load_directory(tmp_path / "m")), logits(model))


def _absent(config: dict[str, object]) -> dict[str, None]:
    """A key of null is as good as absent."""
    return {key: None for key, value in config.items() if value is None}


def test_any_other_prefix_is_an_error(tmp_path: Path) -> None:
    write_toy(tmp_path / "m")
    file = tmp_path / "m" / "model.safetensors"
    save_file({"policy." + name: tensor for name, tensor in load_file(file).items()}, file)
    with user_error("model.embed_tokens.weight", "missing", "policy.model.embed_tokens.weight"):
        load_directory(tmp_path / "m")


def test_derived_buffers_of_older_files_are_left_out(tmp_path: Path) -> None:
    model = write_toy(tmp_path / "m")
    change_tensors(tmp_path / "m", model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(4))
    assert torch.equal(logits(load_directory(tmp_path / "m")), logits(model))


def test_wrong_shape_names_both(tmp_path: Path) -> None:
    write_toy(tmp_path / "m")
    change_tensors(tmp_path / "m", **{Q.replace(".", "__"): torch.zeros(30, 32)})
    with user_error(Q, "[30, 32]", "[32, 32]"):
        load_directory(tmp_path / "m")


def test_wrong_shape_of_a_joined_tensor_names_theirs(tmp_path: Path) -> None:
    config = {"model_type": "gpt_neox", "rotary_pct": 0.5, "num_key_value_heads": None}
    write_toy(tmp_path / "m", **config)
    name = "gpt_neox.layers.0.attention.query_key_value.weight"
    change_tensors(tmp_path / "m", **{name.replace(".", "__"): torch.zeros(95, 32)})
    with user_error(name, "[95, 32]", "[96, 32]"):
        load_directory(tmp_path / "m")


def test_missing_tensor_is_named(tmp_path: Path) -> None:
    write_toy(tmp_path / "m")
    change_tensors(tmp_path / "m", **{Q.replace(".", "__"): None})
    with user_error(Q, "missing"):
        load_directory(tmp_path / "m")


def test_left_over_tensor_is_named_with_its_shape(tmp_path: Path) -> None:
    write_toy(tmp_path / "m")
    change_tensors(tmp_path / "m", model__layers__0__self_attn__q_norm__weight=torch.zeros(8))
    with user_error("model.layers.0.self_attn.q_norm.weight", "[8]", "left over"):
        load_directory(tmp_path / "m")


def test_layers_beyond_the_config_are_left_over(tmp_path: Path) -> None:
    """A config that says fewer layers than the file holds does not get a shorter model in silence."""
    write_toy(tmp_path / "m", num_hidden_layers=3)
    change_config(tmp_path / "m", num_hidden_layers=2)
    with user_error("model.layers.2.", "left over"):
        load_directory(tmp_path / "m")


def test_layers_of_multi_token_prediction_are_skipped(tmp_path: Path) -> None:
    """DeepSeek-V3's file holds a layer that only training uses, and its config says so."""
    model = write_toy(tmp_path / "m", **ROUTED)
    change_tensors(tmp_path / "m", model__layers__2__eh_proj__weight=torch.zeros(32, 64))
    with user_error("model.layers.2.eh_proj.weight"):
        load_directory(tmp_path / "m")
    change_config(tmp_path / "m", num_nextn_predict_layers=1)
    assert torch.equal(logits(load_directory(tmp_path / "m")), logits(model))


def test_padded_vocabulary_is_kept(tmp_path: Path) -> None:
    """Configs may say more tokens than the tokenizer knows (a multiple of 64, say): no row is ever dropped."""
    model = write_toy(tmp_path / "m", vocab_size=128)
    loaded = load_directory(tmp_path / "m")
    assert loaded.embed_tokens.weight.shape == loaded.lm_head.weight.shape == (128, 32)
    save_model(loaded, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["vocab_size"] == 128
    assert torch.equal(load_directory(tmp_path / "again").embed_tokens.weight, model.embed_tokens.weight)


@pytest.mark.parametrize(
    ("asked", "stated", "got"),
    [
        (None, "float32", torch.float32),
        (None, "bfloat16", torch.bfloat16),
        (None, ..., torch.float32),
        ("bfloat16", "float32", torch.bfloat16),
        ("float16", "float32", torch.float16),
        ("float32", "bfloat16", torch.float32),
    ],
)
def test_dtype_on_load(tmp_path: Path, asked: str | None, stated: object, got: torch.dtype) -> None:
    """What is asked for, else what the config says; buffers (a router's correction) stay in fp32."""
    write_toy(tmp_path / "m", **ROUTED)
    change_config(tmp_path / "m", dtype=stated)
    loaded = load_directory(tmp_path / "m", dtype=asked)
    assert {parameter.dtype for parameter in loaded.parameters()} == {got}
    buffers = list(loaded.buffers())
    assert buffers
    assert {buffer.dtype for buffer in buffers} == {torch.float32}


def test_older_key_of_the_dtype(tmp_path: Path) -> None:
    write_toy(tmp_path / "m")
    change_config(tmp_path / "m", dtype=..., torch_dtype="bfloat16")
    assert load_directory(tmp_path / "m").lm_head.weight.dtype == torch.bfloat16


def test_unknown_dtype_is_named(tmp_path: Path) -> None:
    write_toy(tmp_path / "m")
    with user_error("'bfloat61'", "bfloat16"):
        load_directory(tmp_path / "m", dtype="bfloat61")
    change_config(tmp_path / "m", dtype=["float32"])
    with user_error("unknown dtype", "float32"):
        load_directory(tmp_path / "m")


def test_loads_one_tensor_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peak memory is about one copy: each tensor is read once, and what was read is not kept beside the model."""
    write_toy(tmp_path / "m", num_hidden_layers=6)
    read: list[str] = []
    alive: list[weakref.ref[Tensor]] = []
    most = 0
    tensor_of = SafetensorsSource.tensor

    def watched(self: SafetensorsSource, name: str, dtype: torch.dtype) -> Tensor:
        nonlocal most
        tensor = tensor_of(self, name, dtype).clone()  # a tensor that only the loader knows
        read.append(name)
        alive.append(weakref.ref(tensor))
        most = max(most, sum(ref() is not None for ref in alive))
        return tensor

    monkeypatch.setattr(SafetensorsSource, "tensor", watched)
    load_directory(tmp_path / "m", dtype="bfloat16")
    assert sorted(read) == sorted(load_file(tmp_path / "m" / "model.safetensors"))
    assert most <= 3


def test_a_list_is_no_config(tmp_path: Path) -> None:
    write_toy(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text("[1, 2]")
    with user_error("config.json", "not a JSON object"):
        load_directory(tmp_path / "m")


def test_a_config_that_is_not_json(tmp_path: Path) -> None:
    write_toy(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text('{"model_type": "llama",')
    with user_error("config.json", "not valid JSON", "line 1"):
        load_directory(tmp_path / "m")


def test_no_config(tmp_path: Path) -> None:
    write_toy(tmp_path / "m")
    (tmp_path / "m" / "config.json").unlink()
    with user_error("config.json", "No such file"):
        load_directory(tmp_path / "m")


def test_no_directory(tmp_path: Path) -> None:
    with user_error("nowhere"):
        load_directory(tmp_path / "nowhere")
