"""mixtral: mistral whose feed-forward became eight, of which each token takes two."""

from typing import Any

from intaglio.specs.attention import AttentionSpec
from intaglio.specs.decoder import BlockSpec, DecoderSpec
from intaglio.specs.families import common
from intaglio.specs.families.config import Config, as_kind
from intaglio.specs.feed_forward import MoESpec

ARCHITECTURE = "MixtralForCausalLM"


def read(config: Config) -> DecoderSpec:
    window = config.integer("sliding_window", None)
    block = BlockSpec(
        repeat=config.layers(),
        norm=common.rms_norm(config),
        attention=common.read_attention(config, theta=1e6, window=window),
        feed_forward=MoESpec(
            num_experts=config.integer("num_local_experts"),
            num_experts_per_tok=config.integer("num_experts_per_tok"),
            expert=common.read_gated(config),
            load_balancing_coef=config.number("router_aux_loss_coef", 0.0),
        ),
    )
    return common.read_decoder(config, [block])


def write(spec: DecoderSpec) -> dict[str, Any]:
    attention = as_kind(spec.blocks[0].attention, AttentionSpec)
    mixture = as_kind(spec.blocks[0].feed_forward, MoESpec)
    return {
        **common.write_decoder(spec),
        **common.write_attention(attention),
        **common.write_gated(mixture.expert),
        "sliding_window": attention.window,
        "num_local_experts": mixture.num_experts,
        "num_experts_per_tok": mixture.num_experts_per_tok,
        "router_aux_loss_coef": mixture.load_balancing_coef,
    }
