"""llama: pre-norm, RMSNorm, rotary, SwiGLU, grouped queries; SmolLM2 and TinyLlama are of this family."""

from typing import Any

from intaglio.specs.attention import AttentionSpec
from intaglio.specs.decoder import BlockSpec, DecoderSpec
from intaglio.specs.families import common
from intaglio.specs.families.config import Config, as_kind
from intaglio.specs.feed_forward import FeedForwardSpec

ARCHITECTURE = "LlamaForCausalLM"


def read(config: Config) -> DecoderSpec:
    config.expect("rope_interleaved", False)
    block = BlockSpec(
        repeat=config.layers(),
        norm=common.rms_norm(config),
        attention=common.read_attention(config, bias=common.read_bias(config)),
        feed_forward=common.read_gated(config, bias=config.flag("mlp_bias", False)),
    )
    return common.read_decoder(config, [block])


def write(spec: DecoderSpec) -> dict[str, Any]:
    attention = as_kind(spec.blocks[0].attention, AttentionSpec)
    feed_forward = as_kind(spec.blocks[0].feed_forward, FeedForwardSpec)
    return {
        **common.write_decoder(spec),
        **common.write_attention(attention),
        **common.write_gated(feed_forward),
        "attention_bias": attention.bias.o,
        "mlp_bias": feed_forward.bias,
    }
