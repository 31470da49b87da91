"""`config.json` to a spec and back: real files are understood whole, and what is not understood is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from intaglio.errors import UserError
from intaglio.specs import AttentionSpec, LatentAttentionSpec, MoESpec, YarnScaling, validate
from intaglio.specs.decoder import DecoderSpec
from intaglio.specs.families import FAMILIES, config_of, read_config, read_directory
from toy_models import user_error

NUM_PARAMETERS = {
    "SmolLM2-135M-Instruct": 134_515_008,
    "Llama-3.1-8B": 8_030_261_248,
    "Mistral-7B-v0.1": 7_241_732_096,
    "Qwen2-7B": 7_615_616_512,
    "Qwen3-0.6B": 596_049_920,
    "Mixtral-8x7B-v0.1": 46_702_792_704,
    "Qwen3-30B-A3B": 30_532_122_624,
    "DeepSeek-V2-Lite": 15_706_484_224,
    "DeepSeek-V3": 671_026_404_352,
    "gemma-2-2b": 2_614_341_888,
    "gemma-3-270m": 268_098_176,
    "OLMo-2-1124-7B": 7_298_617_344,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "pythia-160m": 162_322_944,
    "gpt-neo-125m": 125_198_592,
    "openai-gpt": 116_534_784,
}
"""Name on the hub -> parameters the model is known to have."""

HUB: dict[str, dict[str, Any]] = {
    name: json.loads((Path(__file__).parent / "hub" / f"{name}.json").read_text()) for name in NUM_PARAMETERS
}
"""Name -> its `config.json`, by whoever wrote it: old keys, silent keys and all."""

every_file = pytest.mark.parametrize("name", HUB)
LLAMA = HUB["Llama-3.1-8B"]


def spec_of(name: str, **changes: Any) -> DecoderSpec:
    return read_config({**HUB[name], **changes})


def test_hub_files_cover_every_family() -> None:
    assert {config["model_type"] for config in HUB.values()} == set(FAMILIES)


@every_file
def test_hub_files_are_understood(name: str) -> None:
    assert spec_of(name).num_parameters() == NUM_PARAMETERS[name]


@every_file
def test_written_configs_say_the_same(name: str) -> None:
    spec = spec_of(name)
    written = config_of(spec)
    assert written["model_type"] == HUB[name]["model_type"]
    assert written["architectures"] == HUB[name]["architectures"]
    assert read_config(json.loads(json.dumps(written))) == spec


@every_file
def test_specs_survive_plain_data(name: str) -> None:
    spec = spec_of(name)
    assert validate(DecoderSpec, json.loads(json.dumps(spec.plain()))) == spec


@every_file
def test_an_unknown_key_is_named(name: str) -> None:
    """Case 1: a fine-tune's own key may change the model, so it is never passed over."""
    with user_error("attention_sinks", "config.json"):
        spec_of(name, attention_sinks=4)
    assert spec_of(name, attention_sinks=None) == spec_of(name)  # null says nothing


@every_file
def test_every_missing_key_has_a_default_or_is_named(name: str) -> None:
    config = HUB[name]
    sizes = {"hidden_size", "num_hidden_layers", "num_attention_heads", "n_embd", "n_layer", "n_head", "vocab_size"}
    for key in config:
        fewer = {other: value for other, value in config.items() if other != key}
        if key in sizes:
            with user_error(f"'{key}'", "config.json"):
                read_config(fewer)
        elif key != "model_type":
            _read_or_refuse(fewer)


JUNK: list[Any] = [
    "x",
    "",
    -1,
    0,
    3,
    1.5,
    True,
    [],
    [1],
    {},
    {"a": 1},
    {"rope_type": 3},
    {"rope_type": "linear", "factor": "x"},
    [[1]],
    [["x", 1]],
    [[["global"], "a"]],
    float("nan"),
    float("inf"),
]


@every_file
def test_no_value_is_answered_with_a_traceback(name: str) -> None:
    """Any value at any key gives a spec or one line."""
    config = HUB[name]
    for key in config:
        for value in JUNK:
            _read_or_refuse({**config, key: value})


def _read_or_refuse(config: dict[str, Any]) -> None:
    try:
        read_config(config)
    except UserError as error:
        line = str(error)
    else:
        return
    assert line.startswith("config.json: ")
    assert "\n" not in line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model_type": "mamba", "architectures": ["MambaForCausalLM"]},
            ["'mamba'", "MambaForCausalLM", "did you mean"],
        ),
        ({"model_type": "lama"}, ["'lama'", "llama"]),
        ({"model_type": None}, ["model_type", "None"]),
        ({"model_type": ["llama"]}, ["model_type", "['llama']"]),
        ({"hidden_act": "mish"}, ["hidden_act", "'mish'"]),
        ({"rope_interleaved": True}, ["rope_interleaved", "True", "False"]),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, ["rope_type", "'longrope'", "llama3"]),
        ({"rope_scaling": {"rope_type": "linear"}}, ["'factor'", "missing"]),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "short_factor": 2}}, ["'short_factor'"]),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, ["'factor'", "'2'"]),
        ({"rope_scaling": [2.0]}, ["'rope_scaling'", "[2.0]"]),
        ({"rms_norm_eps": 0}, ["eps"]),
        ({"hidden_size": "4096"}, ["'hidden_size'", "'4096'", "whole number"]),
        ({"hidden_size": 4096.5}, ["'hidden_size'", "4096.5"]),
        ({"hidden_size": True}, ["'hidden_size'", "True"]),
        ({"tie_word_embeddings": "yes"}, ["'tie_word_embeddings'", "'yes'"]),
        ({"rms_norm_eps": float("nan")}, ["'rms_norm_eps'", "nan"]),
        ({"hidden_size": 4100}, ["hidden_size 4100", "num_heads 32"]),
        ({"num_key_value_heads": 5}, ["num_heads 32", "num_kv_heads 5"]),
        ({"num_attention_heads": 0}, ["'num_attention_heads'", "0"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers", "0"]),
        ({"num_hidden_layers": 10**30}, ["num_hidden_layers", "10000"]),
        ({"head_dim": 7}, ["head_dim 7"]),
        ({"quantization_config": {"quant_method": "fp8"}}, ["'quantization_config'"]),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], words: list[str]) -> None:
    with user_error("config.json", *words):
        read_config({**LLAMA, "rope_scaling": None, **changes})


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("DeepSeek-V3", {"quantization_config": {"quant_method": "fp8", "fmt": "e4m3"}}, ["'quantization_config'"]),
        ("DeepSeek-V3", {"topk_method": "greedy"}, ["topk_method", "'greedy'", "'noaux_tc'"]),
        ("DeepSeek-V3", {"scoring_func": "softmax"}, ["scoring_func", "'softmax'"]),
        ("DeepSeek-V3", {"moe_layer_freq": 2}, ["moe_layer_freq", "2"]),
        ("DeepSeek-V3", {"n_group": 7}, ["num_experts 256", "num_groups 7"]),
        ("DeepSeek-V3", {"topk_group": 9}, ["top_groups 9", "num_groups 8"]),
        ("DeepSeek-V2-Lite", {"norm_topk_prob": True}, ["norm_topk_prob", "True"]),
        ("DeepSeek-V2-Lite", {"num_key_value_heads": 4}, ["num_key_value_heads", "4", "16"]),
        ("Mixtral-8x7B-v0.1", {"num_experts_per_tok": 9}, ["num_experts_per_tok 9", "num_experts 8"]),
        ("Qwen3-30B-A3B", {"use_sliding_window": True, "sliding_window": 64}, ["use_sliding_window", "True"]),
        ("Qwen3-30B-A3B", {"decoder_sparse_step": 0}, ["'decoder_sparse_step'", "0"]),
        ("Qwen2-7B", {"use_mrope": True}, ["use_mrope", "True"]),
        ("Qwen2-7B", {"dual_chunk_attention_config": {"chunk_size": 262144}}, ["'dual_chunk_attention_config'"]),
        ("gemma-3-270m", {"layer_types": ["full_attention"]}, ["layer_types"]),
        ("gemma-3-270m", {"layer_types": ["chunked_attention"] * 18}, ["layer_types", "chunked_attention"]),
        ("gemma-3-270m", {"use_bidirectional_attention": True}, ["use_bidirectional_attention"]),
        ("gemma-2-2b", {"query_pre_attn_scalar": 0}, ["'query_pre_attn_scalar'", "0"]),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, ["scale_attn_by_inverse_layer_idx", "True"]),
        ("gpt2", {"add_cross_attention": True}, ["add_cross_attention"]),
        ("gpt2", {"n_head": 11}, ["768", "11"]),
        ("gpt-neo-125m", {"attention_types": [[["global", "local"], 5]]}, ["attention_types"]),
        ("gpt-neo-125m", {"attention_types": [[["global", "strided"], 6]]}, ["attention_types", "strided"]),
        ("pythia-160m", {"hidden_act": "mish"}, ["hidden_act", "'mish'"]),
        ("openai-gpt", {"afn": "mish"}, ["afn", "'mish'"]),
    ],
)
def test_what_a_family_cannot_say_is_named(name: str, changes: dict[str, Any], words: list[str]) -> None:
    with user_error("config.json", *words):
        spec_of(name, **changes)


def test_windows_are_where_each_family_puts_them() -> None:
    windows = {name: [block.attention.window for block in spec_of(name).blocks] for name in HUB}
    assert windows["Mistral-7B-v0.1"] == [4096] * 32
    assert windows["Mixtral-8x7B-v0.1"] == [None] * 32
    assert windows["Qwen2-7B"] == [None] * 28
    assert windows["gemma-2-2b"] == [4096, None] * 13
    assert windows["gemma-3-270m"] == [512, 512, 512, 512, 512, None] * 3
    assert windows["gpt-neo-125m"] == [None, 256] * 6


def test_qwen_windows_need_their_switch_and_start_late() -> None:
    on = spec_of("Qwen2-7B", use_sliding_window=True, sliding_window=100, max_window_layers=20)
    assert [block.attention.window for block in on.blocks] == [None] * 20 + [100] * 8


def test_two_rotary_bases_of_gemma3() -> None:
    thetas = {(a.window, a.rope.theta) for a in _attentions("gemma-3-270m") if a.rope}
    assert thetas == {(512, 1e4), (None, 1e6)}


def _attentions(name: str) -> list[AttentionSpec]:
    return [block.attention for block in spec_of(name).blocks if isinstance(block.attention, AttentionSpec)]


def test_partial_rotary_of_pythia() -> None:
    rope = _attentions("pythia-160m")[0].rope
    assert rope is not None
    assert rope.dim == 16


def test_scales() -> None:
    assert {a.softmax_scale for a in _attentions("gpt-neo-125m")} == {1.0}
    assert {a.softmax_scale for a in _attentions("gemma-2-2b")} == {256**-0.5}
    assert {a.softmax_scale for a in _attentions("gpt2")} == {64**-0.5}


def test_deepseek_temperature_goes_into_the_scale() -> None:
    attention = spec_of("DeepSeek-V3").blocks[0].attention
    assert isinstance(attention, LatentAttentionSpec)
    assert isinstance(attention.rope.scaling, YarnScaling)
    assert attention.rope.scaling.rotary_factor == 1.0
    assert attention.softmax_scale == pytest.approx(192**-0.5 * 1.3688879454113936**2)  # (0.1 ln 40 + 1)^2


def test_experts() -> None:
    lite, large = (spec_of(name).blocks for name in ("DeepSeek-V2-Lite", "DeepSeek-V3"))
    assert [isinstance(block.feed_forward, MoESpec) for block in lite] == [False] + [True] * 26
    assert [isinstance(block.feed_forward, MoESpec) for block in large] == [False] * 3 + [True] * 58
    mixture = large[-1].feed_forward
    assert isinstance(mixture, MoESpec)
    router = mixture.router
    assert (router.scoring, router.num_groups, router.top_groups, router.scaling_factor) == ("sigmoid", 8, 4, 2.5)
    assert router.bias_correction
    assert spec_of("DeepSeek-V3").num_active_parameters() == pytest.approx(37e9, rel=0.03)  # as published
    assert spec_of("Mixtral-8x7B-v0.1").num_active_parameters() == pytest.approx(12.9e9, rel=0.01)
    assert spec_of("Qwen3-30B-A3B").num_active_parameters() == pytest.approx(3.3e9, rel=0.03)


@pytest.mark.parametrize(("name", "tied"), [("gpt2", True), ("gemma-2-2b", True), ("Llama-3.1-8B", False)])
def test_tying_is_the_familys_default(name: str, tied: bool) -> None:
    config = {key: value for key, value in HUB[name].items() if key != "tie_word_embeddings"}
    assert read_config(config).tie_embeddings is tied
    assert read_config({**config, "tie_word_embeddings": not tied}).tie_embeddings is not tied


def test_newer_rotary_keys_win_over_older() -> None:
    newer = {"rope_type": "default", "rope_theta": 7.0}
    rope = read_config({**LLAMA, "rope_scaling": None, "rope_parameters": newer}).blocks[0].attention.rope
    assert rope is not None
    assert rope.theta == 7.0


def test_our_own_config_is_strict_too() -> None:
    plain = spec_of("gpt2").plain()
    assert read_config({"model_type": "intaglio", "spec": plain}) == spec_of("gpt2")
    with user_error("config.json", "'vocab_sizes'", "vocab_size"):
        read_config({"model_type": "intaglio", "spec": {**plain, "vocab_sizes": 3}})
    with user_error("config.json"):
        read_config({"model_type": "intaglio"})


def test_a_directory_is_read_by_its_config_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_directory(tmp_path) == spec_of("Llama-3.1-8B")
    (tmp_path / "config.json").write_text("[]")
    with user_error(str(tmp_path / "config.json"), "not a JSON object"):
        read_directory(tmp_path)
