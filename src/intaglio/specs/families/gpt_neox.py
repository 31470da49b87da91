"""gpt_neox: attention and feed-forward side by side, rotary positions on a quarter of each head (Pythia)."""

from typing import Any

from intaglio.specs.attention import AttentionSpec
from intaglio.specs.decoder import BlockSpec, DecoderSpec
from intaglio.specs.families import common
from intaglio.specs.families.config import Config, as_kind
from intaglio.specs.families.rope import read_rope, write_rope
from intaglio.specs.feed_forward import FeedForwardSpec
from intaglio.specs.norm import LayerNormSpec

ARCHITECTURE = "GPTNeoXForCausalLM"


def read(config: Config) -> DecoderSpec:
    rope = read_rope(
        config, common.head_dim_of(config), partial=config.number("rotary_pct", 0.25), theta_key="rotary_emb_base"
    )
    config.raw("rope_theta", None)
    parallel = config.flag("use_parallel_residual", True)
    block = BlockSpec(
        repeat=config.layers(),
        norm=LayerNormSpec(eps=config.number("layer_norm_eps", 1e-5)),
        placement="parallel" if parallel else "pre",
        attention=AttentionSpec(
            num_heads=config.integer("num_attention_heads"),
            rope=rope,
            bias=common.read_bias(config, True),
        ),
        feed_forward=FeedForwardSpec(
            intermediate_size=config.integer("intermediate_size"),
            activation=config.choice("hidden_act", common.ACTIVATIONS, "gelu"),
            bias=True,
        ),
    )
    return common.read_decoder(config, [block])


def write(spec: DecoderSpec) -> dict[str, Any]:
    block = spec.blocks[0]
    attention = as_kind(block.attention, AttentionSpec)
    feed_forward = as_kind(block.feed_forward, FeedForwardSpec)
    rope = write_rope(common.rope_in(attention), attention.width)
    return {
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": attention.num_heads,
        "intermediate_size": feed_forward.intermediate_size,
        "hidden_act": common.activation_name(feed_forward.activation),
        "layer_norm_eps": as_kind(block.norm, LayerNormSpec).eps,
        "use_parallel_residual": block.placement == "parallel",
        "attention_bias": attention.bias.o,
        "tie_word_embeddings": spec.tie_embeddings,
        "rotary_emb_base": rope["rope_theta"],
        "rotary_pct": rope.get("partial_rotary_factor", 1.0),
        **{key: rope[key] for key in ("rope_scaling",) if key in rope},
    }
