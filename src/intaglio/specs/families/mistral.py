"""mistral: llama with a sliding window in every layer."""

from typing import Any

from intaglio.specs.attention import AttentionSpec
from intaglio.specs.decoder import BlockSpec, DecoderSpec
from intaglio.specs.families import common
from intaglio.specs.families.config import Config, as_kind
from intaglio.specs.feed_forward import FeedForwardSpec

ARCHITECTURE = "MistralForCausalLM"


def read(config: Config) -> DecoderSpec:
    block = BlockSpec(
        repeat=config.layers(),
        norm=common.rms_norm(config),
        attention=common.read_attention(config, window=config.integer("sliding_window", None)),
        feed_forward=common.read_gated(config),
    )
    return common.read_decoder(config, [block])


def write(spec: DecoderSpec) -> dict[str, Any]:
    attention = as_kind(spec.blocks[0].attention, AttentionSpec)
    return {
        **common.write_decoder(spec),
        **common.write_attention(attention),
        **common.write_gated(as_kind(spec.blocks[0].feed_forward, FeedForwardSpec)),
        "sliding_window": attention.window,
    }
