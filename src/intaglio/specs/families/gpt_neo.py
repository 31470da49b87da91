"""gpt_neo: the open twin of GPT-3's dense and banded layers; scores unscaled, no biases on queries, keys, values."""

from typing import Any

from intaglio.specs.attention import AttentionSpec, ProjectionBias
from intaglio.specs.decoder import BlockSpec, DecoderSpec
from intaglio.specs.families import common
from intaglio.specs.families.config import Config, as_kind
from intaglio.specs.feed_forward import FeedForwardSpec
from intaglio.specs.norm import LayerNormSpec
from intaglio.specs.position import LearnedPositionsSpec

ARCHITECTURE = "GPTNeoForCausalLM"


def read(config: Config) -> DecoderSpec:
    width = config.integer("hidden_size")
    inner = config.integer("intermediate_size", 4 * width)
    activation = config.choice("activation_function", common.ACTIVATIONS, "gelu_new")
    attention = AttentionSpec(num_heads=config.integer("num_heads"), scale=1.0, bias=ProjectionBias(o=True))
    shared = {
        "norm": LayerNormSpec(eps=config.number("layer_norm_epsilon", 1e-5)),
        "feed_forward": FeedForwardSpec(intermediate_size=inner, activation=activation, bias=True),
    }
    return common.read_decoder(
        config,
        [BlockSpec(attention=attention.updated(window=window), **shared) for window in _windows(config)],
        tied=True,
        positions=LearnedPositionsSpec(),
    )


def _windows(config: Config) -> list[int | None]:
    """`attention_types` is a list of [pattern, repeats]; `attention_layers` is the same written out."""
    config.raw("attention_layers", None)
    window = config.integer("window_size", 256)
    table = {"global": None, "local": window}
    patterns = [pair for pair in config.sequence("attention_types") if _is_pattern(pair)]
    kinds = [kind for pattern, repeats in patterns for kind in pattern * repeats]
    if len(patterns) < len(config.sequence("attention_types")) or len(kinds) != config.layers("num_layers"):
        config.expect("attention_types")
    return [table[kind] for kind in kinds]


def _is_pattern(pair: Any) -> bool:
    match pair:
        case [list(kinds), int(repeats)]:
            return repeats < 10_000 and all(kind in ("global", "local") for kind in kinds)
    return False


def write(spec: DecoderSpec) -> dict[str, Any]:
    attentions = [as_kind(block.attention, AttentionSpec) for block in spec.blocks]
    feed_forward = as_kind(spec.blocks[0].feed_forward, FeedForwardSpec)
    kinds = ["local" if attention.window else "global" for attention in attentions]
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "num_layers": spec.num_layers,
        "num_heads": attentions[0].num_heads,
        "attention_types": [[kinds, 1]],
        "window_size": next((attention.window for attention in attentions if attention.window), 256),
        "intermediate_size": feed_forward.intermediate_size,
        "activation_function": common.activation_name(feed_forward.activation, tanh="gelu_new"),
        "layer_norm_epsilon": as_kind(spec.blocks[0].norm, LayerNormSpec).eps,
        "tie_word_embeddings": spec.tie_embeddings,
    }
