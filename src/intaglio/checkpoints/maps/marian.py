"""marian: other names for a layer's norms and feed-forward; one matrix of embeddings for both sides and the output."""

from intaglio.checkpoints.weight_map import Rules

_KINDS = ("weight", "bias")


def _attention(theirs: str, ours: str) -> Rules:
    """The four projections of one attention."""
    projections = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "out_proj": "o_proj"}
    return {f"{theirs}.{a}.{kind}": f"{ours}.{b}.{kind}" for a, b in projections.items() for kind in _KINDS}


def _named(theirs: str, ours: str) -> Rules:
    return {f"{theirs}.{kind}": f"{ours}.{kind}" for kind in _KINDS}


def _layers(side: str) -> Rules:
    """What both sides' layers have."""
    theirs, ours = f"model.{side}.layers.{{}}", f"{side}.layers.{{}}"
    return {
        **_attention(f"{theirs}.self_attn", f"{ours}.attention"),
        **_named(f"{theirs}.self_attn_layer_norm", f"{ours}.attention_norm.outside"),
        **_named(f"{theirs}.fc1", f"{ours}.feed_forward.up_proj"),
        **_named(f"{theirs}.fc2", f"{ours}.feed_forward.down_proj"),
        **_named(f"{theirs}.final_layer_norm", f"{ours}.feed_forward_norm.outside"),
    }


_CROSS = "decoder.layers.{}.cross_attention"

RULES: Rules = {
    "model.shared.weight": "encoder.embed_tokens.weight",
    "final_logits_bias": "logits_bias",
    **_layers("encoder"),
    **_layers("decoder"),
    **_attention("model.decoder.layers.{}.encoder_attn", _CROSS),
    **_named("model.decoder.layers.{}.encoder_attn_layer_norm", f"{_CROSS}_norm.outside"),
}
