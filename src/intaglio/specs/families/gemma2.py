"""gemma2: sandwich norms with unit offset, GEGLU, capped scores and logits, window and full attention in turn."""

from typing import Any

from intaglio.specs.attention import AttentionSpec
from intaglio.specs.decoder import BlockSpec, DecoderSpec
from intaglio.specs.families import common
from intaglio.specs.families.config import Config, as_kind
from intaglio.specs.feed_forward import FeedForwardSpec

ARCHITECTURE = "Gemma2ForCausalLM"


def read(config: Config) -> DecoderSpec:
    count, window = config.layers(), config.integer("sliding_window", None)
    if config.raw("layer_types", None) is None:
        windows = [None if layer % 2 else window for layer in range(count)]
    else:
        windows = common.read_windows(config)
    attention = read_gemma_attention(config)
    return read_gemma(config, [attention.updated(window=window) for window in windows])


def read_gemma_attention(config: Config, **more: Any) -> AttentionSpec:
    """Scores are scaled by 1 / sqrt(query_pre_attn_scalar), whatever the width of a head."""
    config.expect("use_bidirectional_attention", False)
    return common.read_attention(
        config,
        scale=config.positive("query_pre_attn_scalar") ** -0.5,
        softcap=config.number("attn_logit_softcapping", None),
        bias=common.read_bias(config),
        **more,
    )


def read_gemma(config: Config, attentions: list[AttentionSpec]) -> DecoderSpec:
    """The model around each layer's attention."""
    act = "hidden_activation"
    config.choice("hidden_act", common.ACTIVATIONS, "gelu_pytorch_tanh")  # an older key that the newer one overrides
    shared = {
        "norm": common.rms_norm(config, unit_offset=True),
        "placement": "sandwich",
        "feed_forward": common.read_gated(config, act=act),
    }
    return common.read_decoder(
        config,
        [BlockSpec(attention=attention, **shared) for attention in attentions],
        tied=True,
        embedding_scale=config.integer("hidden_size") ** 0.5,
        logit_softcap=config.number("final_logit_softcapping", None),
    )


def write(spec: DecoderSpec) -> dict[str, Any]:
    attention = as_kind(spec.blocks[0].attention, AttentionSpec)
    gated = common.write_gated(as_kind(spec.blocks[0].feed_forward, FeedForwardSpec))
    return {
        **common.write_decoder(spec),
        **common.write_attention(attention),
        **common.write_windows(spec),
        "intermediate_size": gated["intermediate_size"],
        "hidden_activation": gated["hidden_act"],
        "attention_bias": attention.bias.o,
        "query_pre_attn_scalar": _whole(attention.softmax_scale**-2),
        "attn_logit_softcapping": attention.softcap,
        "final_logit_softcapping": spec.logit_softcap,
    }


def _whole(value: float) -> float | int:
    """transformers wants a whole number where it is one."""
    return round(value) if abs(value - round(value)) < 1e-6 else value
