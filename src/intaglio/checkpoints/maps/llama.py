"""llama, mistral, qwen2, qwen3: the names that most of the field uses; biases and norms where there are some."""

EMBEDDINGS = {
    "model.embed_tokens.weight": "embed_tokens.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "lm_head.weight",
}

ATTENTION = {
    f"model.layers.{{}}.self_attn.{name}": f"layers.{{}}.attention.{name}"
    for name in (
        *(f"{part}_proj.{kind}" for part in "qkvo" for kind in ("weight", "bias")),
        "q_norm.weight",
        "k_norm.weight",
    )
}

FEED_FORWARD = {
    f"model.layers.{{}}.mlp.{part}_proj.{kind}": f"layers.{{}}.feed_forward.{part}_proj.{kind}"
    for part in ("gate", "up", "down")
    for kind in ("weight", "bias")
}

PRE_NORMS = {
    "model.layers.{}.input_layernorm.weight": "layers.{}.attention_norm.before.weight",
    "model.layers.{}.post_attention_layernorm.weight": "layers.{}.feed_forward_norm.before.weight",
}

RULES = {**EMBEDDINGS, **ATTENTION, **FEED_FORWARD, **PRE_NORMS}
