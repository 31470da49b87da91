"""deepseek_v2, deepseek_v3: latent attention whose rotary pairs stand side by side; routed and shared experts."""

from intaglio.checkpoints.maps.llama import EMBEDDINGS, FEED_FORWARD, PRE_NORMS
from intaglio.checkpoints.maps.qwen3_moe import EXPERTS
from intaglio.checkpoints.weight_map import Rules, TurnedPairs

_THEIRS, _OURS = "model.layers.{}.self_attn.", "layers.{}.attention."

RULES: Rules = {
    **EMBEDDINGS,
    **PRE_NORMS,
    **FEED_FORWARD,
    **EXPERTS,
    "model.layers.{}.mlp.gate.e_score_correction_bias": "layers.{}.feed_forward.router.bias",
    **{
        f"model.layers.{{}}.mlp.shared_experts.{part}.weight": f"layers.{{}}.feed_forward.shared.{part}.weight"
        for part in ("gate_proj", "up_proj", "down_proj")
    },
    f"{_THEIRS}q_proj.weight": ((f"{_OURS}q_proj.weight",), TurnedPairs(by_head=True)),
    f"{_THEIRS}q_a_proj.weight": f"{_OURS}q_a_proj.weight",
    f"{_THEIRS}q_a_proj.bias": f"{_OURS}q_a_proj.bias",
    f"{_THEIRS}q_a_layernorm.weight": f"{_OURS}q_a_norm.weight",
    f"{_THEIRS}q_b_proj.weight": ((f"{_OURS}q_b_proj.weight",), TurnedPairs(by_head=True)),
    f"{_THEIRS}kv_a_proj_with_mqa.weight": ((f"{_OURS}kv_a_proj.weight",), TurnedPairs(by_head=False)),
    f"{_THEIRS}kv_a_proj_with_mqa.bias": ((f"{_OURS}kv_a_proj.bias",), TurnedPairs(by_head=False)),
    f"{_THEIRS}kv_a_layernorm.weight": f"{_OURS}kv_a_norm.weight",
    f"{_THEIRS}kv_b_proj.weight": f"{_OURS}kv_b_proj.weight",
    f"{_THEIRS}o_proj.weight": f"{_OURS}o_proj.weight",
    f"{_THEIRS}o_proj.bias": f"{_OURS}o_proj.bias",
}
