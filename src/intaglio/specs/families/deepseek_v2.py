"""deepseek_v2: latent attention and many small experts, chosen by softmax scores."""

from typing import Any

from intaglio.specs.decoder import DecoderSpec
from intaglio.specs.families import deepseek_v3
from intaglio.specs.families.config import Config, as_kind
from intaglio.specs.feed_forward import MoESpec, RouterSpec

ARCHITECTURE = "DeepseekV2ForCausalLM"


def read(config: Config) -> DecoderSpec:
    config.expect("scoring_func", "softmax")
    config.expect("norm_topk_prob", False)
    config.expect("mlp_bias", False)
    config.expect("topk_method", "greedy", "group_limited_greedy")
    grouped = config.raw("topk_method", "greedy") == "group_limited_greedy"
    groups, top_groups = config.integer("n_group", 1), config.integer("topk_group", 1)
    router = RouterSpec(
        renormalise=False,
        scaling_factor=config.number("routed_scaling_factor", 1.0),
        num_groups=groups if grouped else 1,
        top_groups=top_groups if grouped else 1,
    )
    return deepseek_v3.read_with(config, router)


def write(spec: DecoderSpec) -> dict[str, Any]:
    router = as_kind(spec.blocks[-1].feed_forward, MoESpec).router
    method = "group_limited_greedy" if router.num_groups > 1 else "greedy"
    return {**deepseek_v3.write(spec), "topk_method": method}
