"""What each GGUF architecture is in Hugging Face's terms: one table of keys and one of tensors per family.

Conventions of llama.cpp's converters, which these tables undo and `gguf_export` follows:

- llama (and Mixtral, Mistral): the rows of q and k are reordered so that a rotary pair is two neighbours; Hugging
  Face keeps the first and the second halves of a head apart.
- Gemma: norms are stored as `1 + w`, the factor really applied; Hugging Face stores `w`.
- GPT-2: linear weights are (out, in); Hugging Face's GPT-2 keeps (in, out).
- experts: one stacked tensor (E, out, in) per projection; Hugging Face has one tensor per expert.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import torch

__all__ = ["FAMILIES", "WRITTEN_AS", "Family", "Rule", "Transform"]

Config = Mapping[str, Any]
Change = Callable[[torch.Tensor, Config], torch.Tensor]


@dataclass(frozen=True)
class Transform:
    """What a tensor's numbers are in GGUF and at Hugging Face; `config` is the latter's.

    Attributes:
        read: from GGUF's.
        write: to GGUF's.
        turns: whether the shape is turned round.
    """

    read: Change
    write: Change
    turns: bool = False


def _halves(heads_key: str) -> Transform:
    """Rotary pairs are neighbours there, rows (H, D/2, 2), and halves here, (H, 2, D/2)."""

    def read(tensor: torch.Tensor, config: Config) -> torch.Tensor:
        pairs = tensor.reshape(config[heads_key], config["head_dim"] // 2, 2, -1)
        return pairs.transpose(1, 2).reshape(tensor.shape)

    def write(tensor: torch.Tensor, config: Config) -> torch.Tensor:
        halves = tensor.reshape(config[heads_key], 2, config["head_dim"] // 2, -1)
        return halves.transpose(1, 2).reshape(tensor.shape)

    return Transform(read, write)


def _turned(tensor: torch.Tensor, config: Config) -> torch.Tensor:
    return tensor.T.contiguous()


_TRANSPOSED: Final = Transform(_turned, _turned, turns=True)
_ONE_MORE: Final = Transform(lambda tensor, config: tensor - 1, lambda tensor, config: tensor + 1)


@dataclass(frozen=True)
class Rule:
    """Where a GGUF tensor goes.

    Attributes:
        name: Hugging Face's name; `{i}` is the layer, `{e}` the expert.
        transform: what must be done to the numbers (in float32), if anything.
    """

    name: str
    transform: Transform | None = None

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the result, for one stored as `stored`."""
        return stored[::-1] if self.transform and self.transform.turns else stored


@dataclass(frozen=True)
class Family:
    """One Hugging Face model type, as GGUF writes it.

    Attributes:
        model_type, model_class: for `config.json`.
        tensors: GGUF name -> rule; `{i}` is the layer, `{e}` the expert.
        required: metadata key without the architecture -> config key; a missing one is an error.
        optional: the same, left out of the config when missing.
        constants: config entries that hold for the whole family.
        biases: config key -> the tensor whose presence it tells.
        rotary: whether positions are rotary, so that the `rope.*` keys are read.
        derive: further config entries from those found so far.
    """

    model_type: str
    model_class: str
    tensors: Mapping[str, Rule]
    required: Mapping[str, str]
    optional: Mapping[str, str] = field(default_factory=dict)
    constants: Config = field(default_factory=lambda: MappingProxyType({}))
    biases: Mapping[str, str] = field(default_factory=dict)
    rotary: bool = True
    derive: Callable[[Config], Config] = lambda config: {}


KEYS: Final = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
BIASES: Final = {"attention_bias": "blk.0.attn_output.bias"}
HEADS: Final = {"attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim"}
EXPERTS: Final = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}

ENDS: Final = {
    "token_embd.weight": Rule("model.embed_tokens.weight"),
    "output_norm.weight": Rule("model.norm.weight"),
    "output.weight": Rule("lm_head.weight"),
}
ATTENTION: Final = {
    f"blk.{{i}}.attn_{gguf}.{kind}": Rule(f"model.layers.{{i}}.self_attn.{ours}_proj.{kind}")
    for gguf, ours in {"q": "q", "k": "k", "v": "v", "output": "o"}.items()
    for kind in ("weight", "bias")
}
ATTENTION_IN_PAIRS: Final = ATTENTION | {
    f"blk.{{i}}.attn_{letter}.{kind}": Rule(f"model.layers.{{i}}.self_attn.{letter}_proj.{kind}", _halves(heads))
    for letter, heads in {"q": "num_attention_heads", "k": "num_key_value_heads"}.items()
    for kind in ("weight", "bias")
}
QK_NORMS: Final = {
    "blk.{i}.attn_q_norm.weight": Rule("model.layers.{i}.self_attn.q_norm.weight"),
    "blk.{i}.attn_k_norm.weight": Rule("model.layers.{i}.self_attn.k_norm.weight"),
}
FEED_FORWARD: Final = {
    f"blk.{{i}}.ffn_{part}.{kind}": Rule(f"model.layers.{{i}}.mlp.{part}_proj.{kind}")
    for part in ("gate", "up", "down")
    for kind in ("weight", "bias")
}
PRE_NORMS: Final = {
    "blk.{i}.attn_norm.weight": Rule("model.layers.{i}.input_layernorm.weight"),
    "blk.{i}.ffn_norm.weight": Rule("model.layers.{i}.post_attention_layernorm.weight"),
}
SANDWICH_NORMS: Final = {
    "blk.{i}.attn_norm.weight": Rule("model.layers.{i}.input_layernorm.weight"),
    "blk.{i}.post_attention_norm.weight": Rule("model.layers.{i}.post_attention_layernorm.weight"),
    "blk.{i}.ffn_norm.weight": Rule("model.layers.{i}.pre_feedforward_layernorm.weight"),
    "blk.{i}.post_ffw_norm.weight": Rule("model.layers.{i}.post_feedforward_layernorm.weight"),
}
MIXTRAL_EXPERTS: Final = {
    "blk.{i}.ffn_gate_inp.weight": Rule("model.layers.{i}.block_sparse_moe.gate.weight"),
    **{
        f"blk.{{i}}.ffn_{part}{form}.weight": Rule(f"model.layers.{{i}}.block_sparse_moe.experts.{{e}}.{ours}.weight")
        for part, ours in {"gate": "w1", "down": "w2", "up": "w3"}.items()
        for form in ("_exps", ".{e}")  # stacked, and one by one in files from before 2024-04
    },
}
QWEN_EXPERTS: Final = {
    "blk.{i}.ffn_gate_inp.weight": Rule("model.layers.{i}.mlp.gate.weight"),
    **{
        f"blk.{{i}}.ffn_{part}_exps.weight": Rule(f"model.layers.{{i}}.mlp.experts.{{e}}.{part}_proj.weight")
        for part in ("gate", "up", "down")
    },
}


def _offset_norms(rules: Mapping[str, Rule]) -> dict[str, Rule]:
    return {gguf: Rule(rule.name, _ONE_MORE) if gguf.endswith("norm.weight") else rule for gguf, rule in rules.items()}


def _gpt2_tensors() -> dict[str, Rule]:
    parts = {
        "attn_norm": "ln_1",
        "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    }
    rules = {
        "token_embd.weight": Rule("transformer.wte.weight"),
        "position_embd.weight": Rule("transformer.wpe.weight"),
        "output_norm.weight": Rule("transformer.ln_f.weight"),
        "output_norm.bias": Rule("transformer.ln_f.bias"),
        "output.weight": Rule("lm_head.weight"),
    }
    for gguf, ours in parts.items():
        turn = None if gguf.endswith("norm") else _TRANSPOSED
        rules[f"blk.{{i}}.{gguf}.weight"] = Rule(f"transformer.h.{{i}}.{ours}.weight", turn)
        rules[f"blk.{{i}}.{gguf}.bias"] = Rule(f"transformer.h.{{i}}.{ours}.bias")
    return rules


def _sliding(config: Config, every: int) -> dict[str, Any]:
    """Layer kinds in turn: each `every`th layer sees everything, the others a window."""
    kinds = ["sliding_attention"] * (every - 1) + ["full_attention"]
    return {"layer_types": [kinds[layer % every] for layer in range(config["num_hidden_layers"])]}


def _score_scale(config: Config, largest: int) -> dict[str, Any]:
    """Scores are divided by sqrt(head_dim), except in the family's largest model, known by its depth: there by
    sqrt(hidden_size / heads). GGUF does not store the number; this is llama.cpp's rule."""
    by_width = config["num_hidden_layers"] == largest
    width = config["hidden_size"] // config["num_attention_heads"] if by_width else config["head_dim"]
    return {"query_pre_attn_scalar": width}


def _derive_gemma2(config: Config) -> Config:
    return _sliding(config, 2) | _score_scale(config, 46)


def _derive_gemma3(config: Config) -> Config:
    return _sliding(config, 6) | _score_scale(config, 62)


GEMMA: Final = {"hidden_activation": "gelu_pytorch_tanh", "attention_bias": False}
GEMMA2 = Family(
    "gemma2",
    "Gemma2ForCausalLM",
    _offset_norms(ENDS | ATTENTION | FEED_FORWARD | SANDWICH_NORMS),
    KEYS
    | {
        "attention.sliding_window": "sliding_window",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    HEADS,
    GEMMA,
    derive=_derive_gemma2,
)
GEMMA3 = Family(
    "gemma3_text",
    "Gemma3ForCausalLM",
    _offset_norms(ENDS | ATTENTION | QK_NORMS | FEED_FORWARD | SANDWICH_NORMS),
    KEYS | {"attention.sliding_window": "sliding_window"},
    HEADS | {"final_logit_softcapping": "final_logit_softcapping", "rope.freq_base_swa": "rope_local_base_freq"},
    GEMMA,
    derive=lambda config: {"rope_local_base_freq": 10000.0, **_derive_gemma3(config)},
)
GPT2 = Family(
    "gpt2",
    "GPT2LMHeadModel",
    _gpt2_tensors(),
    {
        "block_count": "n_layer",
        "context_length": "n_positions",
        "embedding_length": "n_embd",
        "feed_forward_length": "n_inner",
        "attention.head_count": "n_head",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
    },
    constants={"activation_function": "gelu_new"},
    rotary=False,
)
LLAMA = Family(
    "llama",
    "LlamaForCausalLM",
    ENDS | ATTENTION_IN_PAIRS | FEED_FORWARD | PRE_NORMS,
    KEYS,
    HEADS,
    {"hidden_act": "silu"},
    BIASES | {"mlp_bias": "blk.0.ffn_down.bias"},
)
MISTRAL = Family(
    "mistral",
    "MistralForCausalLM",
    LLAMA.tensors,
    KEYS | {"attention.sliding_window": "sliding_window"},
    HEADS,
    LLAMA.constants,
)
MIXTRAL = Family(
    "mixtral",
    "MixtralForCausalLM",
    ENDS | ATTENTION_IN_PAIRS | MIXTRAL_EXPERTS | PRE_NORMS,
    KEYS | EXPERTS | {"expert_count": "num_local_experts"},
    HEADS | {"attention.sliding_window": "sliding_window"},
    LLAMA.constants,
)
QWEN2 = Family(
    "qwen2",
    "Qwen2ForCausalLM",
    ENDS | ATTENTION | FEED_FORWARD | PRE_NORMS,
    KEYS,
    HEADS,
    {"hidden_act": "silu", "use_sliding_window": False},
)
QWEN3 = Family(
    "qwen3",
    "Qwen3ForCausalLM",
    {**QWEN2.tensors, **QK_NORMS},
    KEYS,
    HEADS,
    QWEN2.constants,
    BIASES,
)
QWEN3_MOE = Family(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    ENDS | ATTENTION | QK_NORMS | QWEN_EXPERTS | PRE_NORMS,
    KEYS | EXPERTS | {"expert_feed_forward_length": "moe_intermediate_size"},
    HEADS,
    {**QWEN2.constants, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    BIASES,
)


def _one(family: Family) -> Callable[[Config], Family]:
    return lambda metadata: family


def _llama_like(metadata: Config) -> Family:
    """GGUF calls three families `llama`; what the file states tells them apart."""
    if metadata.get("llama.expert_count"):
        return MIXTRAL
    return MISTRAL if metadata.get("llama.attention.sliding_window") else LLAMA


FAMILIES: Final[dict[str, Callable[[Config], Family]]] = {
    "gemma2": _one(GEMMA2),
    "gemma3": _one(GEMMA3),
    "gpt2": _one(GPT2),
    "llama": _llama_like,
    "qwen2": _one(QWEN2),
    "qwen3": _one(QWEN3),
    "qwen3moe": _one(QWEN3_MOE),
}
"""GGUF's `general.architecture` -> the family, chosen by the metadata."""

WRITTEN_AS: Final = {
    family.model_type: (architecture, family)
    for architecture, families in {
        "gemma2": (GEMMA2,),
        "gemma3": (GEMMA3,),
        "gpt2": (GPT2,),
        "llama": (LLAMA, MISTRAL, MIXTRAL),
        "qwen2": (QWEN2,),
        "qwen3": (QWEN3,),
        "qwen3moe": (QWEN3_MOE,),
    }.items()
    for family in families
}
"""Hugging Face's `model_type` -> what GGUF calls the architecture, and the family."""
