"""olmo2: llama with norms behind each sublayer."""

from intaglio.checkpoints.maps.llama import ATTENTION, EMBEDDINGS, FEED_FORWARD

RULES = {
    **EMBEDDINGS,
    **ATTENTION,
    **FEED_FORWARD,
    "model.layers.{}.post_attention_layernorm.weight": "layers.{}.attention_norm.after.weight",
    "model.layers.{}.post_feedforward_layernorm.weight": "layers.{}.feed_forward_norm.after.weight",
}
