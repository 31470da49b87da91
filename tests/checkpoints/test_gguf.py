"""GGUF files become Hugging Face configs and tensors, family by family."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoConfig, AutoModelForCausalLM

from intaglio.checkpoints import gguf_tensors
from intaglio.checkpoints.gguf import open_gguf
from intaglio.checkpoints.gguf_container import read_container
from intaglio.errors import UserError
from toy_gguf import BYTE_LEVEL, LLAMA, interleave, llama_tensors, write_gguf, write_llama

torch.set_num_threads(1)

SIZES: dict[str, Any] = {
    "vocab_size": 272,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 4, "tie_word_embeddings": True}
HF_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **SIZES},
    "mistral": {"model_type": "mistral", **SIZES, "sliding_window": 4},
    "qwen2": {"model_type": "qwen2", **{k: v for k, v in SIZES.items() if k != "head_dim"}},
    "qwen3": {"model_type": "qwen3", **SIZES, "head_dim": 16},
    "gemma2": {"model_type": "gemma2", **SIZES, **GEMMA},
    "gemma3": {"model_type": "gemma3_text", **SIZES, **GEMMA, "num_hidden_layers": 7},
    "gpt2": {"model_type": "gpt2", "vocab_size": 272, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
}
EXTRA_KEYS: dict[str, dict[str, Any]] = {
    "llama": {"rope.dimension_count": 8},
    "mistral": {"attention.sliding_window": 4},
    "qwen3": {"attention.key_length": 16},
    "gemma2": {
        "attention.key_length": 16,
        "attention.sliding_window": 4,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3": {"attention.key_length": 16, "attention.sliding_window": 4, "block_count": 7},
}


def hf_model(family: str) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**HF_CONFIGS[family])).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.3)
    return model


def write_as_gguf(model: Any, family: str, path: Path) -> Path:
    """The model in llama.cpp's conventions, its names by the gguf library's own table."""
    architecture = "llama" if family == "mistral" else family
    config = model.config
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    tensors = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = value.float().numpy()
        if family in ("llama", "mistral") and (".q_proj." in name or ".k_proj." in name):
            array = interleave(array, config.num_attention_heads if ".q_" in name else config.num_key_value_heads)
        if family.startswith("gemma") and name.endswith("norm.weight"):
            array = array + 1
        if family == "gpt2" and any(part in name for part in ("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            array = array.T
        tensors[names.get_name(name, (".weight", ".bias"))] = array
    keys = {
        "block_count": 2,
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 128 if family == "gpt2" else 64,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_epsilon" if family == "gpt2" else "attention.layer_norm_rms_epsilon": (
            1e-5 if family == "gpt2" else 1e-6
        ),
        **({} if family == "gpt2" else {"rope.freq_base": 1e6 if family == "gemma3" else 1e4}),
        **EXTRA_KEYS.get(family, {}),
    }
    return write_gguf(path, architecture, {f"{architecture}.{k}": v for k, v in keys.items()} | BYTE_LEVEL, tensors)


@pytest.mark.parametrize("family", HF_CONFIGS)
def test_a_family_gives_back_the_model_it_was_written_from(family: str, tmp_path: Path) -> None:
    wanted = hf_model(family)
    opened = open_gguf(write_as_gguf(wanted, family, tmp_path / "toy.gguf"))
    config = opened.config()
    found = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).eval()
    assert type(found).__name__ == config["architectures"][0]
    weights = {name: opened.tensor(name) for name in opened.tensor_names()}
    assert {name: tuple(value.shape) for name, value in weights.items()} == opened.shapes()
    missing = found.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    found.tie_weights()
    ids = torch.randint(0, 272, (2, 17))
    with torch.no_grad():
        torch.testing.assert_close(found(ids).logits, wanted(ids).logits, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", [Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0])
def test_a_stored_model_reads_as_the_library_dequantises_it(kind: Kind, tmp_path: Path) -> None:
    opened = open_gguf(write_llama(tmp_path / "toy.gguf", kind=kind))
    stored = llama_tensors()
    for ours, theirs in {"mlp.down_proj": "ffn_down", "self_attn.v_proj": "attn_v"}.items():
        values = stored[f"blk.1.{theirs}.weight"]
        wanted = torch.from_numpy(gguf.dequantize(gguf.quantize(values, kind), kind))
        assert torch.equal(opened.tensor(f"model.layers.1.{ours}.weight"), wanted)
        assert torch.equal(opened.tensor(f"model.layers.1.{ours}.weight", torch.bfloat16), wanted.bfloat16())


@pytest.mark.parametrize("kind", sorted(gguf_tensors.READABLE))
def test_pieces_join_without_a_seam(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_tensors, "PIECE", 512)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    shape = (5, 256)
    raw = np.random.default_rng(0).integers(0, 60, 5 * 256 // block * size, dtype=np.uint8)
    wanted = gguf.dequantize(raw.reshape(5, -1), kind)
    found = gguf_tensors.to_torch(raw, kind, shape, torch.float32)
    assert np.array_equal(found.numpy(), wanted, equal_nan=True)


def test_our_header_is_the_librarys_header(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "toy.gguf", kind=Kind.Q4_1)
    ours, theirs = read_container(path), gguf.GGUFReader(path)
    contents = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert {
        key: pytest.approx(value) if isinstance(value, float) else value for key, value in ours.metadata.items()
    } == contents
    assert [(t.name, t.data_offset, t.n_bytes, t.shape.tolist()[::-1]) for t in theirs.tensors] == [
        (entry.name, entry.start, entry.num_bytes, list(entry.shape)) for entry in ours.tensors.values()
    ]


def test_float_settings_are_the_numbers_that_were_meant(tmp_path: Path) -> None:
    assert open_gguf(write_llama(tmp_path / "toy.gguf")).config()["rms_norm_eps"] == 1e-5


def test_ends_of_text_and_of_turn_all_stop(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "toy.gguf", metadata={"tokenizer.ggml.eot_token_id": 0})
    assert open_gguf(path).generation_config() == {"bos_token_id": 1, "pad_token_id": 2, "eos_token_id": [2, 0]}


def test_a_second_copy_of_the_embedding_is_a_tie_and_another_matrix_is_not(tmp_path: Path) -> None:
    embedding = llama_tensors()["token_embd.weight"]
    tied = open_gguf(write_llama(tmp_path / "a.gguf", tensors={"output.weight": embedding}))
    own = open_gguf(write_llama(tmp_path / "b.gguf", tensors={"output.weight": embedding + 1}))
    assert tied.config()["tie_word_embeddings"] is True
    assert "lm_head.weight" not in tied.tensor_names()
    assert own.config()["tie_word_embeddings"] is False
    assert "lm_head.weight" in own.tensor_names()


EXPERTS = {"llama.expert_count": 3, "llama.expert_used_count": 2}


def _moe(experts: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    dense = {name: value for name, value in llama_tensors().items() if ".ffn_" not in name or "norm" in name}
    return dense | {f"blk.{i}.{name}": value + i for i in range(2) for name, value in experts.items()}


def test_stacked_and_single_experts_are_the_same_mixtral(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    stack = {p: random.normal(size=(3, 96, 64)).astype(np.float32) for p in ("gate", "up")}
    stack["down"] = random.normal(size=(3, 64, 96)).astype(np.float32)
    router = {"ffn_gate_inp.weight": np.ones((3, 64), np.float32)}
    stacked = router | {f"ffn_{part}_exps.weight": value for part, value in stack.items()}
    single = router | {f"ffn_{part}.{e}.weight": value[e] for part, value in stack.items() for e in range(3)}
    models = [
        open_gguf(write_gguf(tmp_path / f"{i}.gguf", "llama", LLAMA | EXPERTS | BYTE_LEVEL, _moe(experts)))
        for i, experts in enumerate([stacked, single])
    ]
    assert models[0].config()["num_local_experts"] == 3
    assert models[0].config()["model_type"] == "mixtral"
    assert sorted(models[0].tensor_names()) == sorted(models[1].tensor_names())
    for part, ours in {"gate": "w1", "down": "w2", "up": "w3"}.items():
        name = f"model.layers.1.block_sparse_moe.experts.2.{ours}.weight"
        assert all(np.array_equal(model.tensor(name).numpy(), stack[part][2] + 1) for model in models)


def test_qwen3_moe(tmp_path: Path) -> None:
    keys = {key.replace("llama.", "qwen3moe."): value for key, value in (LLAMA | EXPERTS).items()}
    keys |= {"qwen3moe.expert_feed_forward_length": 96}
    experts: dict[str, np.ndarray[Any, Any]] = {"ffn_gate_exps.weight": np.ones((3, 96, 64), np.float32)}
    experts |= {"ffn_up_exps.weight": np.ones((3, 96, 64), np.float32)}
    experts |= {"ffn_down_exps.weight": np.ones((3, 64, 96), np.float32)}
    experts |= {"ffn_gate_inp.weight": np.ones((3, 64), np.float32)}
    experts |= {f"attn_{letter}_norm.weight": np.ones(16, np.float32) for letter in "qk"}
    opened = open_gguf(write_gguf(tmp_path / "toy.gguf", "qwen3moe", keys | BYTE_LEVEL, _moe(experts)))
    config = AutoConfig.for_model(**opened.config())
    assert (config.model_type, config.num_experts, config.num_experts_per_tok) == ("qwen3_moe", 3, 2)
    assert config.moe_intermediate_size == 96
    assert opened.tensor("model.layers.1.mlp.experts.2.down_proj.weight").shape == (64, 96)
    assert opened.tensor("model.layers.0.mlp.gate.weight").shape == (3, 64)


def _llama3_factors() -> np.ndarray[Any, Any]:
    """As Meta's code computes them, frequency by frequency (head size 16, base 10000, factor 8)."""
    factors = []
    for i in range(8):
        wavelength = 2 * np.pi * 10000 ** (i / 8)
        smooth = (8192 / wavelength - 1) / 3
        inside = 1 / ((1 - smooth) / 8 + smooth)
        factors.append(1.0 if wavelength < 2048 else 8.0 if wavelength > 8192 else inside)
    return np.array(factors, np.float32)


def test_llama3_rotary_scaling_is_read_back_from_its_divisors(tmp_path: Path) -> None:
    factors = _llama3_factors()
    config = open_gguf(write_llama(tmp_path / "toy.gguf", tensors={"rope_freqs.weight": factors})).config()
    assert config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    with pytest.raises(UserError, match=r"rope_freqs\.weight"):
        open_gguf(write_llama(tmp_path / "odd.gguf", tensors={"rope_freqs.weight": factors[::-1]}))


def test_linear_and_yarn_scaling(tmp_path: Path) -> None:
    keys = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    linear = open_gguf(write_llama(tmp_path / "a.gguf", metadata=keys)).config()
    assert linear["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    keys |= {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 32}
    yarn = open_gguf(write_llama(tmp_path / "b.gguf", metadata=keys)).config()
    assert yarn["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    with pytest.raises(UserError, match=r"rope\.scaling\.type.*longrope"):
        open_gguf(write_llama(tmp_path / "c.gguf", metadata={"llama.rope.scaling.type": "longrope"}))


@pytest.mark.parametrize(
    ("metadata", "tensors", "message"),
    [
        ({"llama.embedding_length": None}, {}, r"'llama\.embedding_length' is missing"),
        ({"llama.attention.head_count": 0}, {}, r"head_count' is 0"),
        ({"llama.block_count": 3}, {}, "block_count' is 3, but the file holds 2 layers"),
        ({"llama.attention.head_count_kv": [2, 1]}, {}, r"head_count_kv' is \[2, 1\]"),
        ({"llama.rope.dimension_count": 8}, {}, "a part of each head"),
        ({"tokenizer.ggml.eos_token_id": 999}, {}, "eos_token_id' is 999"),
        ({"split.count": 2}, {}, "split over several files"),
        (
            {},
            {"blk.0.attn_mystery.weight": np.zeros((4, 4), np.float32)},
            r"'blk\.0\.attn_mystery\.weight' is not known",
        ),
    ],
)
def test_what_cannot_be_read_is_named(
    metadata: dict[str, Any], tensors: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_llama(tmp_path / "toy.gguf", metadata=metadata, tensors=tensors)
    with pytest.raises(UserError, match=message) as caught:
        open_gguf(path)
    assert "toy.gguf" in str(caught.value)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "toy.gguf", "lama", {"lama.block_count": 1}, {"token_embd.weight": np.zeros((2, 2), np.float32)}
    )
    with pytest.raises(UserError, match=r"'lama' is not supported; did you mean llama\?"):
        open_gguf(path)


def test_a_storage_type_we_do_not_read_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "toy.gguf", "llama")
    raw = np.zeros((64, 54), np.uint8)
    tensors = llama_tensors() | {"blk.0.attn_v.weight": raw}
    for key, value in LLAMA.items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    for name, values in tensors.items():
        writer.add_tensor(name, values, raw_dtype=Kind.TQ1_0 if values is raw else Kind.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        UserError, match=r"attn_v\.weight': tensors stored as TQ1_0 cannot be read; readable types: BF16"
    ):
        open_gguf(tmp_path / "toy.gguf").tensor("model.layers.0.self_attn.v_proj.weight")


def test_a_shape_against_the_metadata_is_named(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "toy.gguf", tensors={"blk.0.attn_q.weight": np.zeros((60, 62), np.float32)})
    with pytest.raises(UserError, match=r"attn_q\.weight': shape \[60, 62\] contradicts"):
        open_gguf(path).tensor("model.layers.0.self_attn.q_proj.weight")
