"""What most families say alike: the vocabulary of the LLaMA line. A family's file says only what is different."""

from collections.abc import Sequence
from typing import Any

from intaglio.specs.attention import AttentionSpec, ProjectionBias
from intaglio.specs.decoder import BlockSpec, DecoderSpec
from intaglio.specs.families.config import CannotExpress, Config, as_kind
from intaglio.specs.families.rope import read_rope, write_rope
from intaglio.specs.feed_forward import FeedForwardSpec, SwishSpec
from intaglio.specs.norm import RMSNormSpec
from intaglio.specs.position import RotarySpec

__all__ = [
    "ACTIVATIONS",
    "activation_name",
    "read_attention",
    "read_bias",
    "read_decoder",
    "read_gated",
    "read_windows",
    "rms_norm",
    "rope_in",
    "write_attention",
    "write_decoder",
    "write_gated",
    "write_windows",
]

ACTIVATIONS = {
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


def activation_name(spec: str | SwishSpec, tanh: str = "gelu_pytorch_tanh") -> str:
    """Hugging Face's name of an activation; `tanh` is the family's name of GELU's tanh form."""
    names = {"relu": "relu", "relu2": "relu2", "gelu": "gelu", "gelu_tanh": tanh, "silu": "silu"}
    if not isinstance(spec, str) or spec not in names:
        raise CannotExpress(f"activation {spec}")
    return names[spec]


def rms_norm(config: Config, *, unit_offset: bool = False) -> RMSNormSpec:
    """The norm of every layer."""
    return RMSNormSpec(eps=config.number("rms_norm_eps", 1e-6), unit_offset=unit_offset)


def head_dim_of(config: Config) -> int:
    """`head_dim`, or what follows from the width."""
    width, heads = config.integer("hidden_size"), config.positive("num_attention_heads")
    return int(config.integer("head_dim", None) or width // heads)


def read_attention(
    config: Config, *, theta: float = 10000.0, rope: RotarySpec | None = None, **more: Any
) -> AttentionSpec:
    """Heads, widths and rotary positions; `more` is what the family adds."""
    head_dim = head_dim_of(config)
    heads = config.integer("num_attention_heads")
    return AttentionSpec(
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=config.integer("head_dim", None),
        rope=rope or read_rope(config, head_dim, theta),
        **more,
    )


def read_bias(config: Config, default: bool = False) -> ProjectionBias:
    """`attention_bias`: on all four projections or on none."""
    bias = config.flag("attention_bias", default)
    return ProjectionBias(q=bias, k=bias, v=bias, o=bias)


def read_gated(
    config: Config, size: str = "intermediate_size", act: str = "hidden_act", **more: Any
) -> FeedForwardSpec:
    """The gated feed-forward of the LLaMA line."""
    activation = config.choice(act, ACTIVATIONS, "silu")
    return FeedForwardSpec(intermediate_size=config.integer(size), activation=activation, gated=True, **more)


def read_windows(config: Config) -> list[int | None]:
    """The window of each layer, from `layer_types` and `sliding_window`."""
    count, window = config.layers(), config.integer("sliding_window", None)
    kinds = config.sequence("layer_types", ["full_attention"] * count)
    table = {"full_attention": None, "sliding_attention": window}
    if len(kinds) != count or any(kind not in list(table) for kind in kinds):
        config.expect("layer_types", default=kinds)
    return [table[kind] for kind in kinds]


def read_decoder(config: Config, blocks: Sequence[BlockSpec], *, tied: bool = False, **more: Any) -> DecoderSpec:
    """The model around its layers; `tied` is the family's default."""
    return DecoderSpec(
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        max_position_embeddings=config.integer("max_position_embeddings"),
        layers=tuple(blocks),
        tie_embeddings=config.flag("tie_word_embeddings", tied),
        **more,
    )


def write_decoder(spec: DecoderSpec) -> dict[str, Any]:
    """The keys of `read_decoder` and of the norm."""
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "num_hidden_layers": spec.num_layers,
        "tie_word_embeddings": spec.tie_embeddings,
        "rms_norm_eps": as_kind(spec.blocks[0].norm, RMSNormSpec).eps,
    }


def write_attention(attention: AttentionSpec) -> dict[str, Any]:
    """The keys of `read_attention`."""
    return {
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.kv_heads,
        "head_dim": attention.width,
        **write_rope(rope_in(attention), attention.width),
    }


def rope_in(attention: AttentionSpec) -> RotarySpec:
    """The rotary spec, which a family of this line must have."""
    return as_kind(attention.rope, RotarySpec)


def write_gated(feed_forward: FeedForwardSpec) -> dict[str, Any]:
    """The keys of `read_gated`."""
    return {
        "intermediate_size": feed_forward.intermediate_size,
        "hidden_act": activation_name(feed_forward.activation),
    }


def write_windows(spec: DecoderSpec) -> dict[str, Any]:
    """The keys of `read_windows`."""
    windows = [block.attention.window for block in spec.blocks]
    kinds = ["sliding_attention" if window else "full_attention" for window in windows]
    return {"layer_types": kinds, "sliding_window": next((window for window in windows if window), None)}
