"""gemma3_text: gemma2 without caps, with a norm on queries and keys, and its own rotary base for windowed layers."""

from typing import Any

from intaglio.specs.attention import AttentionSpec, QKNormSpec
from intaglio.specs.decoder import DecoderSpec
from intaglio.specs.families import common, gemma2
from intaglio.specs.families.config import CannotExpress, Config, as_kind
from intaglio.specs.families.rope import rope_of, write_rope
from intaglio.specs.position import RotarySpec

ARCHITECTURE = "Gemma3ForCausalLM"


def read(config: Config) -> DecoderSpec:
    windows = _windows(config)
    local, full = _ropes(config)
    qk_norm = QKNormSpec(norm=common.rms_norm(config, unit_offset=True), over="head")
    attention = gemma2.read_gemma_attention(config, rope=full, qk_norm=qk_norm)
    layers = [attention.updated(window=window, rope=local if window else full) for window in windows]
    return gemma2.read_gemma(config, layers)


def _windows(config: Config) -> list[int | None]:
    """Every sixth layer is full, unless `layer_types` says otherwise."""
    period = config.integer("sliding_window_pattern", None) or config.integer("_sliding_window_pattern", 6)
    config.raw("_sliding_window_pattern", None)
    if config.raw("layer_types", None) is not None:
        return common.read_windows(config)
    window = config.integer("sliding_window")
    return [window if (layer + 1) % period else None for layer in range(config.layers())]


def _ropes(config: Config) -> tuple[RotarySpec, RotarySpec]:
    """(windowed layers, full layers): scaling is for the full ones only."""
    newer = Config(config.mapping("rope_parameters"), config.where)
    local = {"rope_theta": config.number("rope_local_base_freq", 10000.0), **newer.mapping("sliding_attention")}
    full = {"rope_theta": config.number("rope_theta", 1e6), **config.mapping("rope_scaling")}
    full |= newer.mapping("full_attention")
    newer.finish()
    head_dim = common.head_dim_of(config)
    return rope_of(local, config, head_dim), rope_of(full, config, head_dim)


def write(spec: DecoderSpec) -> dict[str, Any]:
    attentions = [as_kind(block.attention, AttentionSpec) for block in spec.blocks]
    local = next((a for a in attentions if a.window), None)
    full = next((a for a in attentions if not a.window), None)
    if local is None or full is None:
        raise CannotExpress("needs windowed and full layers")
    keys = gemma2.write(spec)
    keys.pop("rope_scaling", None)
    return {
        **keys,
        **write_rope(common.rope_in(full), full.width),
        "rope_local_base_freq": common.rope_in(local).theta,
    }
