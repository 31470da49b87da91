"""qwen3_moe: qwen3, with experts in most layers."""

from intaglio.checkpoints.maps import llama
from intaglio.checkpoints.weight_map import Rules, Stacked

EXPERTS: Rules = {
    "model.layers.{}.mlp.gate.weight": "layers.{}.feed_forward.router.weight",
    **{
        f"model.layers.{{}}.mlp.experts.{{}}.{part}_proj.weight": (
            (f"layers.{{}}.feed_forward.experts.{part}_proj",),
            Stacked(),
        )
        for part in ("gate", "up", "down")
    },
}

RULES: Rules = {**llama.RULES, **EXPERTS}
