"""mixtral: llama's attention; experts whose w1, w3, w2 are gate, up and down."""

from intaglio.checkpoints.maps.llama import ATTENTION, EMBEDDINGS, PRE_NORMS
from intaglio.checkpoints.weight_map import Rules, Stacked

_EXPERTS = {"w1": "gate", "w3": "up", "w2": "down"}

RULES: Rules = {
    **EMBEDDINGS,
    **ATTENTION,
    **PRE_NORMS,
    "model.layers.{}.block_sparse_moe.gate.weight": "layers.{}.feed_forward.router.weight",
    **{
        f"model.layers.{{}}.block_sparse_moe.experts.{{}}.{theirs}.weight": (
            (f"layers.{{}}.feed_forward.experts.{ours}_proj",),
            Stacked(),
        )
        for theirs, ours in _EXPERTS.items()
    },
}
