"""gemma2, gemma3_text: llama with norms before and behind each sublayer."""

from intaglio.checkpoints.maps.llama import ATTENTION, EMBEDDINGS, FEED_FORWARD

RULES = {
    **EMBEDDINGS,
    **ATTENTION,
    **FEED_FORWARD,
    "model.layers.{}.input_layernorm.weight": "layers.{}.attention_norm.before.weight",
    "model.layers.{}.post_attention_layernorm.weight": "layers.{}.attention_norm.after.weight",
    "model.layers.{}.pre_feedforward_layernorm.weight": "layers.{}.feed_forward_norm.before.weight",
    "model.layers.{}.post_feedforward_layernorm.weight": "layers.{}.feed_forward_norm.after.weight",
}
