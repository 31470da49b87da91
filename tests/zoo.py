"""Tiny random models of every family, as transformers builds them: what our own are held against.

Each `Animal` varies one thing that matters. Weights are large enough for sharp attention and logits of order one (the
usual standard deviation of 0.02 hides most mistakes), and norms, biases and router corrections are random too.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from intaglio.checkpoints.load import load_directory
from intaglio.models.decoder import Decoder

__all__ = ["CACHED", "FAMILY_FIRSTS", "ZOO", "Animal", "Pair", "PairOf", "build", "random_ids"]

VOCAB, LENGTH = 61, 64


@dataclass(frozen=True)
class Animal:
    """A tiny model.

    Attributes:
        name: says what is varied.
        model_type: Hugging Face's name of the family.
        architecture: their class.
        config: keys that differ from the class's defaults.
        older: keys that files written before `rope_parameters` hold in place of it.
        written_as: the class that must open what we write, where an earlier family says exactly the same.
    """

    name: str
    model_type: str
    architecture: str
    config: dict[str, Any] = field(hash=False)
    older: dict[str, Any] = field(default_factory=dict, hash=False)
    written_as: str = ""


@dataclass(frozen=True)
class Pair:
    """A model of transformers', the directory it wrote, and what our reader makes of that."""

    animal: Animal
    theirs: Any
    directory: Path

    @cached_property
    def ours(self) -> Decoder:
        return load_directory(self.directory)


PairOf = Callable[[str], Pair]


def build(animal: Animal, seed: int = 0) -> Any:
    """transformers' model of `animal`, its weights random; scores computed in full (eager), since SDPA drops caps."""
    torch.manual_seed(seed)
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}  # a pad id would have no gradient over there
    config = AutoConfig.for_model(animal.model_type, **tokens, **animal.config)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.16)
        else:
            parameter.data += 0.3 * torch.randn_like(parameter)
    for part in (model.get_input_embeddings(), model.get_output_embeddings()):
        nn.init.normal_(part.weight, std=0.12)  # logits of order one
    for name, buffer in model.named_buffers():
        if "correction" in name:
            buffer.normal_(std=0.16)
    return model


@cache
def random_ids(batch: int, length: int, seed: int = 1) -> Tensor:
    """(batch, length)"""
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


_BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
}
_QWEN_MIXTURE = {**_BASE, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def _rope(kind: str, theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def _older_rope(kind: str, theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_theta": theta, "rope_scaling": {"type": kind, **more}}


def _llama(name: str, older: dict[str, Any] | None = None, **more: Any) -> Animal:
    return Animal(f"llama-{name}", "llama", "LlamaForCausalLM", {**_BASE, **more}, older or {})


def _qwen(name: str, **more: Any) -> Animal:
    family = name.split("-")[0]
    return Animal(name, family, f"{family.title()}ForCausalLM", {**_BASE, **more})


def _mixtral(name: str, **more: Any) -> Animal:
    return Animal(f"mixtral-{name}", "mixtral", "MixtralForCausalLM", {**_BASE, "num_local_experts": 4, **more})


def _qwen3_moe(name: str, **more: Any) -> Animal:
    return Animal(f"qwen3_moe-{name}", "qwen3_moe", "Qwen3MoeForCausalLM", {**_QWEN_MIXTURE, **more})


LLAMAS = (
    _llama("grouped", {"rope_theta": 500.0}, **_rope("default", 500.0)),
    _llama("multi-head-biases", num_key_value_heads=6, attention_bias=True, mlp_bias=True),
    _llama("multi-query", num_key_value_heads=1, rms_norm_eps=1e-3),
    _llama("wide-heads-tied", head_dim=16, tie_word_embeddings=True, hidden_act="gelu"),
    _llama("linear", _older_rope("linear", 300.0, factor=2.5), **_rope("linear", 300.0, factor=2.5)),
    _llama(
        "dynamic",
        _older_rope("dynamic", 1e4, factor=2.0),
        **{**_rope("dynamic", factor=2.0), "max_position_embeddings": 24},
    ),
    _llama("yarn", **_rope("yarn", factor=4.0, original_max_position_embeddings=16)),
    _llama(
        "yarn-attention-factor",
        _older_rope("yarn", 1e4, factor=4.0, original_max_position_embeddings=16, attention_factor=0.8),
        **_rope("yarn", factor=4.0, original_max_position_embeddings=16, attention_factor=0.8),
    ),
    _llama(
        "yarn-mscale",
        **_rope("yarn", factor=8.0, original_max_position_embeddings=8, mscale=0.7, mscale_all_dim=1.3),
    ),
    _llama(
        "yarn-ramp",
        head_dim=32,
        **_rope("yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=3.5, beta_slow=0.2, truncate=False),
    ),
    _llama(
        "llama3",
        head_dim=32,
        **_rope(
            "llama3",
            500.0,
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
)

MISTRALS = tuple(
    Animal(f"mistral-{name}", "mistral", "MistralForCausalLM", {**_BASE, **more}, written_as=written_as)
    for name, written_as, more in (
        ("window", "", {"sliding_window": 6}),
        ("full", "LlamaForCausalLM", {"sliding_window": None, "num_key_value_heads": 6}),
        ("wide-heads", "", {"sliding_window": 3, "head_dim": 16, "rms_norm_eps": 1e-3, "tie_word_embeddings": True}),
    )
)

QWENS = (
    _qwen("qwen2-full", use_sliding_window=False, sliding_window=5),
    _qwen("qwen2-windows", use_sliding_window=True, sliding_window=5, max_window_layers=1, num_hidden_layers=4),
    _qwen("qwen2-tied", num_key_value_heads=6, rms_norm_eps=1e-3, tie_word_embeddings=True),
    _qwen("qwen3-norms", head_dim=16),
    _qwen(
        "qwen3-biases-windows",
        head_dim=8,
        rms_norm_eps=1e-3,
        hidden_act="gelu",
        attention_bias=True,
        tie_word_embeddings=True,
        use_sliding_window=True,
        sliding_window=5,
        max_window_layers=2,
    ),
)

MIXTURES = (
    _mixtral("two-of-four", num_experts_per_tok=2),
    _mixtral("window", rms_norm_eps=1e-3, hidden_act="gelu", num_experts_per_tok=3, sliding_window=6, head_dim=16),
    _qwen3_moe("renormalised-one-dense", norm_topk_prob=True, mlp_only_layers=[1]),
    _qwen3_moe("raw-weights", rms_norm_eps=1e-3, norm_topk_prob=False, num_experts_per_tok=3, attention_bias=True),
    _qwen3_moe("every-second", norm_topk_prob=True, decoder_sparse_step=2, num_hidden_layers=4),
)

_LATENT = {
    **_BASE,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}

DEEPSEEKS = tuple(
    Animal(f"{family}-{name}", family, architecture, {**_LATENT, **more}, older)
    for family, architecture, name, more, older in (
        ("deepseek_v2", "DeepseekV2ForCausalLM", "queries-direct", {"q_lora_rank": None}, {}),
        (
            "deepseek_v2",
            "DeepseekV2ForCausalLM",
            "grouped",
            {
                "topk_method": "group_limited_greedy",
                "n_group": 4,
                "topk_group": 2,
                "routed_scaling_factor": 1.7,
                "rms_norm_eps": 1e-3,
                "n_shared_experts": 2,
                "attention_bias": True,
            },
            {},
        ),
        (
            "deepseek_v2",
            "DeepseekV2ForCausalLM",
            "yarn",
            _rope("yarn", factor=4.0, original_max_position_embeddings=16, mscale=0.707, mscale_all_dim=0.707),
            _older_rope(
                "yarn", 1e4, factor=4.0, original_max_position_embeddings=16, mscale=0.707, mscale_all_dim=0.707
            ),
        ),
        ("deepseek_v3", "DeepseekV3ForCausalLM", "grouped", {"n_group": 4, "topk_group": 2}, {}),
        (
            "deepseek_v3",
            "DeepseekV3ForCausalLM",
            "yarn-temperature",
            {
                "n_group": 2,
                "topk_group": 1,
                "norm_topk_prob": False,
                "routed_scaling_factor": 1.3,
                **_rope("yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0, mscale_all_dim=1.0),
            },
            {},
        ),
        (
            "deepseek_v3",
            "DeepseekV3ForCausalLM",
            "queries-direct-biases",
            {
                "n_group": 1,
                "topk_group": 1,
                "q_lora_rank": None,
                "rms_norm_eps": 1e-3,
                "attention_bias": True,
                "tie_word_embeddings": True,
            },
            {},
        ),
    )
)

_GEMMA = {**_BASE, "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24}

GEMMAS = (
    Animal(
        "gemma2-caps",
        "gemma2",
        "Gemma2ForCausalLM",
        {**_GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "num_hidden_layers": 4},
    ),
    Animal(
        "gemma2-no-caps",
        "gemma2",
        "Gemma2ForCausalLM",
        {
            **_GEMMA,
            "attn_logit_softcapping": None,
            "rms_norm_eps": 1e-3,
            "hidden_activation": "silu",
            "final_logit_softcapping": None,
            "attention_bias": True,
            "num_key_value_heads": 6,
        },
    ),
    Animal(
        "gemma3-two-bases",
        "gemma3_text",
        "Gemma3ForCausalLM",
        {**_GEMMA, "num_hidden_layers": 7},
        {"rope_theta": 1e6, "rope_local_base_freq": 1e4},
    ),
    Animal(
        "gemma3-linear",
        "gemma3_text",
        "Gemma3ForCausalLM",
        {
            **_GEMMA,
            "num_hidden_layers": 7,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-3,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
        {
            "rope_theta": 5000.0,
            "rope_local_base_freq": 100.0,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        },
    ),
)

OLMOS = tuple(
    Animal(f"olmo2-{name}", "olmo2", "Olmo2ForCausalLM", {**_BASE, **more})
    for name, more in {
        "grouped": {},
        "multi-head-biases": {
            "rms_norm_eps": 1e-3,
            "num_key_value_heads": 6,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    }.items()
)

_OPENAI = {"vocab_size": VOCAB, "n_positions": LENGTH, "n_embd": 48, "n_layer": 3, "n_head": 4}

OPENAIS = tuple(
    Animal(f"{family}-{name}", family, architecture, {**_OPENAI, **more})
    for family, architecture, name, more in (
        ("gpt2", "GPT2LMHeadModel", "gelu-tanh", {}),
        (
            "gpt2",
            "GPT2LMHeadModel",
            "narrow-relu",
            {"n_inner": 70, "layer_norm_epsilon": 1e-3, "activation_function": "relu"},
        ),
        (
            "gpt2",
            "GPT2LMHeadModel",
            "untied-gelu",
            {"tie_word_embeddings": False, "activation_function": "gelu", "reorder_and_upcast_attn": True},
        ),
        ("gpt2", "GPT2LMHeadModel", "squared-relu", {"activation_function": "relu2"}),
        ("openai-gpt", "OpenAIGPTLMHeadModel", "gelu", {"afn": "gelu"}),
        ("openai-gpt", "OpenAIGPTLMHeadModel", "swish", {"afn": "silu", "layer_norm_epsilon": 1e-3, "n_head": 6}),
    )
)

_ELEUTHER = {"vocab_size": VOCAB, "hidden_size": 48, "max_position_embeddings": LENGTH}
_NEO = {**_ELEUTHER, "num_layers": 4, "num_heads": 4, "window_size": 5}
_NEOX = {**_ELEUTHER, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 80}

ELEUTHERS = tuple(
    Animal(name, family, architecture, {**shared, **more}, older)
    for family, architecture, shared, name, more, older in (
        (
            "gpt_neo",
            "GPTNeoForCausalLM",
            _NEO,
            "gpt_neo-banded",
            {"attention_types": [[["global", "local"], 2]], "intermediate_size": 80},
            {},
        ),
        (
            "gpt_neo",
            "GPTNeoForCausalLM",
            _NEO,
            "gpt_neo-uneven",
            {
                "attention_types": [[["local"], 3], [["global"], 1]],
                "layer_norm_epsilon": 1e-3,
                "activation_function": "gelu",
            },
            {},
        ),
        (
            "gpt_neox",
            "GPTNeoXForCausalLM",
            _NEOX,
            "gpt_neox-quarter",
            _rope("default", 1e4, partial_rotary_factor=0.25),
            {"rotary_pct": 0.25, "rotary_emb_base": 10000},
        ),
        (
            "gpt_neox",
            "GPTNeoXForCausalLM",
            _NEOX,
            "gpt_neox-in-turn-whole",
            {
                "use_parallel_residual": False,
                "layer_norm_eps": 1e-3,
                "hidden_act": "gelu_new",
                **_rope("default", 500.0, partial_rotary_factor=1.0),
            },
            {"rotary_pct": 1.0, "rotary_emb_base": 500},
        ),
        (
            "gpt_neox",
            "GPTNeoXForCausalLM",
            _NEOX,
            "gpt_neox-no-biases-linear",
            {
                "attention_bias": False,
                "tie_word_embeddings": True,
                **_rope("linear", 1e4, partial_rotary_factor=0.5, factor=3.0),
            },
            {},
        ),
    )
)

ZOO = {
    animal.name: animal
    for group in (LLAMAS, MISTRALS, QWENS, MIXTURES, DEEPSEEKS, GEMMAS, OLMOS, OPENAIS, ELEUTHERS)
    for animal in group
}
"""Name -> animal."""

FAMILY_FIRSTS = {animal.model_type: name for name, animal in reversed(ZOO.items())}
"""Model type -> the first animal of the family."""

CACHED = sorted(
    {
        *FAMILY_FIRSTS.values(),
        "mistral-wide-heads",
        "qwen2-windows",
        "mixtral-window",
        "gemma3-linear",
        "gpt_neo-uneven",
        "llama-multi-query",
        "deepseek_v3-yarn-temperature",
    }
)
"""One animal of every family, and those whose windows or latents make caching harder."""
