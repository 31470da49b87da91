"""qwen2: llama with biases on queries, keys and values; some layers may have a window."""

from typing import Any

from intaglio.specs.attention import AttentionSpec, ProjectionBias
from intaglio.specs.decoder import BlockSpec, DecoderSpec
from intaglio.specs.families import common
from intaglio.specs.families.config import Config, as_kind
from intaglio.specs.feed_forward import FeedForwardSpec

ARCHITECTURE = "Qwen2ForCausalLM"


def read(config: Config) -> DecoderSpec:
    config.expect("use_mrope", False)
    bias = ProjectionBias(q=True, k=True, v=True)
    return read_with(config, bias=bias)


def write(spec: DecoderSpec) -> dict[str, Any]:
    attention = as_kind(spec.blocks[0].attention, AttentionSpec)
    windows = common.write_windows(spec)
    return {
        **common.write_decoder(spec),
        **common.write_attention(attention),
        **common.write_gated(as_kind(spec.blocks[0].feed_forward, FeedForwardSpec)),
        **windows,
        "use_sliding_window": windows["sliding_window"] is not None,
    }


def read_with(config: Config, **more: Any) -> DecoderSpec:
    """The layers of the Qwen line, `more` being what its generation gives to attention."""
    common_parts = {"norm": common.rms_norm(config), "feed_forward": common.read_gated(config)}
    attention = common.read_attention(config, **more)
    blocks = [BlockSpec(attention=attention.updated(window=window), **common_parts) for window in qwen_windows(config)]
    return common.read_decoder(config, blocks)


def qwen_windows(config: Config) -> list[int | None]:
    """A window counts only with `use_sliding_window`; without `layer_types`, from layer `max_window_layers` on."""
    count, first = config.layers(), config.integer("max_window_layers", 28)
    windows = common.read_windows(config)
    window = config.integer("sliding_window", None)
    if not config.flag("use_sliding_window", False):
        return [None] * count
    if config.raw("layer_types", None) is None:
        return [window if layer >= first else None for layer in range(count)]
    return windows
