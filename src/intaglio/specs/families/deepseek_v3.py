"""deepseek_v3: latent attention; many small experts in groups, chosen by sigmoid scores and a correcting bias."""

from typing import Any

from intaglio.specs.attention import LatentAttentionSpec
from intaglio.specs.decoder import BlockSpec, DecoderSpec
from intaglio.specs.families import common
from intaglio.specs.families.config import CannotExpress, Config, as_kind
from intaglio.specs.families.rope import read_rope, write_rope
from intaglio.specs.feed_forward import FeedForwardSpec, MoESpec, RouterSpec
from intaglio.specs.norm import RMSNormSpec

ARCHITECTURE = "DeepseekV3ForCausalLM"


def read(config: Config) -> DecoderSpec:
    config.expect("rope_interleave", True)
    config.expect("scoring_func", "sigmoid")
    config.expect("topk_method", "noaux_tc")
    router = RouterSpec(
        scoring="sigmoid",
        renormalise=config.flag("norm_topk_prob", True),
        scaling_factor=config.number("routed_scaling_factor", 1.0),
        num_groups=config.integer("n_group", 1),
        top_groups=config.integer("topk_group", 1),
        group_score="top2",
        bias_correction=True,
    )
    return read_with(config, router)


def read_with(config: Config, router: RouterSpec) -> DecoderSpec:
    """The layers of the DeepSeek line, whose generations choose experts differently."""
    config.expect("moe_layer_freq", 1)
    shared = {"norm": common.rms_norm(config), "attention": _attention(config)}
    dense = BlockSpec(feed_forward=common.read_gated(config), **shared)
    sparse = BlockSpec(feed_forward=_mixture(config, router), **shared)
    first = config.integer("first_k_dense_replace", 0)
    layers = [dense if layer < first else sparse for layer in range(config.layers())]
    return common.read_decoder(config, layers)


def _attention(config: Config) -> LatentAttentionSpec:
    heads = config.integer("num_attention_heads")
    config.expect("num_key_value_heads", heads)
    rope_dim = config.integer("qk_rope_head_dim")
    nope_dim = config.integer("qk_nope_head_dim")
    config.expect("head_dim", rope_dim, nope_dim + rope_dim)  # two sizes that follow from the others
    config.expect("qk_head_dim", nope_dim + rope_dim)
    return LatentAttentionSpec(
        num_heads=heads,
        q_lora_rank=config.integer("q_lora_rank", None),
        kv_lora_rank=config.integer("kv_lora_rank"),
        qk_nope_head_dim=nope_dim,
        qk_rope_head_dim=rope_dim,
        v_head_dim=config.integer("v_head_dim"),
        norm=RMSNormSpec(eps=1e-6),  # transformers does not pass rms_norm_eps to the norms of the latents
        rope=read_rope(config, rope_dim),
        bias=config.flag("attention_bias", False),
    )


def _mixture(config: Config, router: RouterSpec) -> MoESpec:
    expert = common.read_gated(config, size="moe_intermediate_size")
    shared = config.integer("n_shared_experts", 0) * expert.intermediate_size
    return MoESpec(
        num_experts=config.integer("n_routed_experts"),
        num_experts_per_tok=config.integer("num_experts_per_tok"),
        expert=expert,
        shared=expert.updated(intermediate_size=shared) if shared else None,
        router=router,
    )


def write(spec: DecoderSpec) -> dict[str, Any]:
    attention = as_kind(spec.blocks[0].attention, LatentAttentionSpec)
    layers = [block.feed_forward for block in spec.blocks]
    mixture = as_kind(layers[-1], MoESpec)
    if mixture.shared is None:
        raise CannotExpress("transformers' DeepSeek always has shared experts")
    dense = as_kind(layers[0], FeedForwardSpec) if isinstance(layers[0], FeedForwardSpec) else mixture.expert
    return {
        **common.write_decoder(spec),
        **common.write_gated(dense),
        **_write_attention(attention),
        "first_k_dense_replace": sum(isinstance(layer, FeedForwardSpec) for layer in layers),
        "moe_intermediate_size": mixture.expert.intermediate_size,
        "n_routed_experts": mixture.num_experts,
        "n_shared_experts": mixture.shared.intermediate_size // mixture.expert.intermediate_size,
        "num_experts_per_tok": mixture.num_experts_per_tok,
        "norm_topk_prob": mixture.router.renormalise,
        "routed_scaling_factor": mixture.router.scaling_factor,
        "n_group": mixture.router.num_groups,
        "topk_group": mixture.router.top_groups,
    }


def _write_attention(attention: LatentAttentionSpec) -> dict[str, Any]:
    return {
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_heads,
        "q_lora_rank": attention.q_lora_rank,
        "kv_lora_rank": attention.kv_lora_rank,
        "qk_nope_head_dim": attention.qk_nope_head_dim,
        "qk_rope_head_dim": attention.qk_rope_head_dim,
        "v_head_dim": attention.v_head_dim,
        "attention_bias": attention.bias,
        **write_rope(attention.rope, attention.qk_rope_head_dim),
    }
