"""gpt2: pre-norm LayerNorm, learned positions, GELU, biases everywhere, tied embeddings."""

from typing import Any

from intaglio.specs.attention import AttentionSpec, ProjectionBias
from intaglio.specs.decoder import BlockSpec, DecoderSpec, Placement
from intaglio.specs.families import common
from intaglio.specs.families.config import Config, as_kind
from intaglio.specs.feed_forward import FeedForwardSpec
from intaglio.specs.norm import LayerNormSpec
from intaglio.specs.position import LearnedPositionsSpec

ARCHITECTURE = "GPT2LMHeadModel"


def read(config: Config) -> DecoderSpec:
    config.expect("scale_attn_weights", True)
    config.expect("scale_attn_by_inverse_layer_idx", False)
    config.expect("add_cross_attention", False)
    config.expect("reorder_and_upcast_attn", False, True)  # the same numbers in another order
    inner = config.integer("n_inner", 4 * config.integer("n_embd"))
    activation = config.choice("activation_function", common.ACTIVATIONS, "gelu_new")
    return read_gpt(config, "pre", inner, activation)


def read_gpt(config: Config, placement: Placement, inner: int, activation: str) -> DecoderSpec:
    """GPT-1 and GPT-2 in OpenAI's names."""
    block = BlockSpec(
        repeat=config.layers("n_layer"),
        norm=LayerNormSpec(eps=config.number("layer_norm_epsilon", 1e-5)),
        placement=placement,
        attention=AttentionSpec(
            num_heads=config.integer("n_head"), bias=ProjectionBias(q=True, k=True, v=True, o=True)
        ),
        feed_forward=FeedForwardSpec(intermediate_size=inner, activation=activation, bias=True),
    )
    return DecoderSpec(
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("n_embd"),
        max_position_embeddings=config.integer("n_positions"),
        positions=LearnedPositionsSpec(),
        layers=(block,),
        tie_embeddings=config.flag("tie_word_embeddings", True),
    )


def write(spec: DecoderSpec) -> dict[str, Any]:
    feed_forward = as_kind(spec.blocks[0].feed_forward, FeedForwardSpec)
    return {
        **write_gpt(spec),
        "n_inner": feed_forward.intermediate_size,
        "activation_function": common.activation_name(feed_forward.activation, tanh="gelu_new"),
    }


def write_gpt(spec: DecoderSpec) -> dict[str, Any]:
    """The keys of `read_gpt`."""
    block = spec.blocks[0]
    return {
        "vocab_size": spec.vocab_size,
        "n_positions": spec.max_position_embeddings,
        "n_embd": spec.hidden_size,
        "n_layer": spec.num_layers,
        "n_head": as_kind(block.attention, AttentionSpec).num_heads,
        "layer_norm_epsilon": as_kind(block.norm, LayerNormSpec).eps,
        "tie_word_embeddings": spec.tie_embeddings,
    }
