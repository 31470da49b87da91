"""qwen3_moe: qwen3 with a mixture of experts; some layers may stay dense."""

from typing import Any

from intaglio.specs.attention import AttentionSpec, QKNormSpec
from intaglio.specs.decoder import BlockSpec, DecoderSpec
from intaglio.specs.families import common
from intaglio.specs.families.config import CannotExpress, Config, as_kind
from intaglio.specs.feed_forward import FeedForwardSpec, MoESpec, RouterSpec

ARCHITECTURE = "Qwen3MoeForCausalLM"


def read(config: Config) -> DecoderSpec:
    config.expect("use_sliding_window", False)
    for key in ("max_window_layers", "sliding_window"):  # nothing without use_sliding_window
        config.raw(key, None)
    norm = common.rms_norm(config)
    attention = common.read_attention(
        config,
        qk_norm=QKNormSpec(norm=norm, over="head"),
        bias=common.read_bias(config),
    )
    dense, mixture = common.read_gated(config), _mixture(config)
    step, dense_layers = config.positive("decoder_sparse_step", 1), config.sequence("mlp_only_layers", [])
    blocks = [
        BlockSpec(
            norm=norm,
            attention=attention,
            feed_forward=dense if layer in dense_layers or (layer + 1) % step else mixture,
        )
        for layer in range(config.layers())
    ]
    return common.read_decoder(config, blocks)


def _mixture(config: Config) -> MoESpec:
    experts = config.integer("num_experts", None) or config.integer("num_local_experts")
    config.raw("num_local_experts", None)
    return MoESpec(
        num_experts=experts,
        num_experts_per_tok=config.integer("num_experts_per_tok"),
        expert=common.read_gated(config, size="moe_intermediate_size"),
        router=RouterSpec(renormalise=config.flag("norm_topk_prob", False)),
        load_balancing_coef=config.number("router_aux_loss_coef", 0.0),
    )


def write(spec: DecoderSpec) -> dict[str, Any]:
    attention = as_kind(spec.blocks[0].attention, AttentionSpec)
    layers = [block.feed_forward for block in spec.blocks]
    mixture = next((layer for layer in layers if isinstance(layer, MoESpec)), None)
    if mixture is None:
        raise CannotExpress("no mixture of experts")
    dense = next((layer for layer in layers if isinstance(layer, FeedForwardSpec)), mixture.expert)
    return {
        **common.write_decoder(spec),
        **common.write_attention(attention),
        **common.write_gated(dense),
        "attention_bias": attention.bias.o,
        "num_experts": mixture.num_experts,
        "num_experts_per_tok": mixture.num_experts_per_tok,
        "moe_intermediate_size": mixture.expert.intermediate_size,
        "norm_topk_prob": mixture.router.renormalise,
        "router_aux_loss_coef": mixture.load_balancing_coef,
        "mlp_only_layers": [i for i, layer in enumerate(layers) if isinstance(layer, FeedForwardSpec)],
        "decoder_sparse_step": 1,
    }
