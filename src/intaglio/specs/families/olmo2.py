"""olmo2: llama with the norm behind each sublayer, inside the residual, and on whole queries and keys."""

from typing import Any

from intaglio.specs.attention import AttentionSpec, QKNormSpec
from intaglio.specs.decoder import BlockSpec, DecoderSpec
from intaglio.specs.families import common
from intaglio.specs.families.config import Config, as_kind
from intaglio.specs.feed_forward import FeedForwardSpec

ARCHITECTURE = "Olmo2ForCausalLM"


def read(config: Config) -> DecoderSpec:
    norm = common.rms_norm(config)
    attention = common.read_attention(
        config,
        qk_norm=QKNormSpec(norm=norm, over="projection"),
        bias=common.read_bias(config),
    )
    block = BlockSpec(
        repeat=config.layers(),
        norm=norm,
        placement="residual",
        attention=attention,
        feed_forward=common.read_gated(config),
    )
    return common.read_decoder(config, [block])


def write(spec: DecoderSpec) -> dict[str, Any]:
    attention = as_kind(spec.blocks[0].attention, AttentionSpec)
    return {
        **common.write_decoder(spec),
        **common.write_attention(attention),
        **common.write_gated(as_kind(spec.blocks[0].feed_forward, FeedForwardSpec)),
        "attention_bias": attention.bias.o,
    }
