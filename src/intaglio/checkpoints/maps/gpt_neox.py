"""gpt_neox: queries, keys and values joined head by head."""

from intaglio.checkpoints.weight_map import JoinedByHead, Rules

_THEIRS, _OURS = "gpt_neox.layers.{}.", "layers.{}."
_PARTS = {
    "attention.dense": "attention.o_proj",
    "mlp.dense_h_to_4h": "feed_forward.up_proj",
    "mlp.dense_4h_to_h": "feed_forward.down_proj",
    "input_layernorm": "attention_norm.before",
    "post_attention_layernorm": "feed_forward_norm.before",
}

RULES: Rules = {
    "gpt_neox.embed_in.weight": "embed_tokens.weight",
    "gpt_neox.final_layer_norm.weight": "norm.weight",
    "gpt_neox.final_layer_norm.bias": "norm.bias",
    "embed_out.weight": "lm_head.weight",
    **{
        f"{_THEIRS}{theirs}.{kind}": f"{_OURS}{ours}.{kind}"
        for theirs, ours in _PARTS.items()
        for kind in ("weight", "bias")
    },
    **{
        f"{_THEIRS}attention.query_key_value.{kind}": (
            tuple(f"{_OURS}attention.{part}_proj.{kind}" for part in "qkv"),
            JoinedByHead(),
        )
        for kind in ("weight", "bias")
    },
}
