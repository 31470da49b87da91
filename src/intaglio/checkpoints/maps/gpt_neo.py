"""gpt_neo: gpt2's names over separate matrices as (out, in)."""

from intaglio.checkpoints.maps.gpt2 import EMBEDDINGS, norms
from intaglio.checkpoints.weight_map import Rules

_PARTS = {
    "attn.attention.q_proj": "attention.q_proj",
    "attn.attention.k_proj": "attention.k_proj",
    "attn.attention.v_proj": "attention.v_proj",
    "attn.attention.out_proj": "attention.o_proj",
    "mlp.c_fc": "feed_forward.up_proj",
    "mlp.c_proj": "feed_forward.down_proj",
}

RULES: Rules = {
    **EMBEDDINGS,
    **norms("before"),
    **{
        f"transformer.h.{{}}.{theirs}.{kind}": f"layers.{{}}.{ours}.{kind}"
        for theirs, ours in _PARTS.items()
        for kind in ("weight", "bias")
    },
}
