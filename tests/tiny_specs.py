"""Tiny decoders, one for each thing a spec can say: what counted arithmetic is held against built modules on."""

from typing import Any, get_args

from intaglio.specs import DecoderSpec, validate
from intaglio.specs.decoder import Placement

LAYER = {"kind": "layer_norm"}
RMS = {"kind": "rms_norm"}
WIDE = {"intermediate_size": 48}
GATED = {"intermediate_size": 48, "activation": "silu", "gated": True}
EXPERT = {"intermediate_size": 16, "activation": "silu", "gated": True}
LATENT = {
    "kind": "latent_attention",
    "num_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "norm": RMS,
}
MOE = {"kind": "moe", "num_experts": 8, "num_experts_per_tok": 2, "expert": EXPERT}


def attention(**fields: Any) -> dict[str, Any]:
    """Four heads with rotary positions, or what is said otherwise."""
    return {"num_heads": 4, "rope": {}, **fields}


def block(**fields: Any) -> dict[str, Any]:
    """A pre-norm layer, or what is said otherwise."""
    return {"norm": RMS, "attention": attention(), "feed_forward": GATED, **fields}


def decoder(*layers: dict[str, Any], **fields: Any) -> DecoderSpec:
    """A decoder of those layers, 32 wide."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "max_position_embeddings": 32}
    spec: DecoderSpec = validate(DecoderSpec, {**sizes, "layers": list(layers or [block()]), **fields})
    return spec


def with_attention(**fields: Any) -> DecoderSpec:
    return decoder(block(attention=attention(**fields)))


def with_feed_forward(**fields: Any) -> DecoderSpec:
    return decoder(block(feed_forward={**WIDE, **fields}))


def with_moe(**fields: Any) -> DecoderSpec:
    return decoder(block(feed_forward={**MOE, **fields}))


PLACEMENTS = {
    f"{placement} {norm['kind']}": decoder(block(placement=placement, norm=norm, repeat=2))
    for placement in get_args(Placement)
    for norm in (LAYER, RMS)
}

ATTENTIONS = {
    "MHA": with_attention(),
    "GQA": with_attention(num_kv_heads=2),
    "MQA": with_attention(num_kv_heads=1),
    "narrow heads": with_attention(head_dim=4),
    "wide heads": with_attention(head_dim=24, num_kv_heads=2),
    "window": with_attention(window=4),
    "window of one": with_attention(window=1, num_kv_heads=2),
    "norm over heads": with_attention(num_kv_heads=2, qk_norm={"norm": RMS}),
    "norm over projections": with_attention(num_kv_heads=2, qk_norm={"norm": LAYER, "over": "projection"}),
    "bias on q": with_attention(num_kv_heads=2, bias={"q": True}),
    "bias on k": with_attention(num_kv_heads=2, bias={"k": True}),
    "bias on v": with_attention(num_kv_heads=2, bias={"v": True}),
    "bias on o": with_attention(num_kv_heads=2, bias={"o": True}),
    "soft-capped": with_attention(num_kv_heads=2, softcap=20.0),
    "unscaled": with_attention(scale=1.0),
    "partly rotary": with_attention(rope={"dim": 4}),
    "latent": decoder(block(attention=LATENT)),
    "latent, compressed queries": decoder(block(attention={**LATENT, "q_lora_rank": 12})),
    "latent, biases": decoder(block(attention={**LATENT, "q_lora_rank": 12, "bias": True, "norm": LAYER})),
    "latent, biases, direct queries": decoder(block(attention={**LATENT, "bias": True})),
}

FEED_FORWARDS = {
    "plain": with_feed_forward(activation="relu"),
    "squared ReLU": with_feed_forward(activation="relu2"),
    "squared ReLU, gated": with_feed_forward(activation="relu2", gated=True),
    "tanh form": with_feed_forward(activation="gelu_tanh"),
    "plain with biases": with_feed_forward(bias=True),
    "gated": with_feed_forward(gated=True, activation="sigmoid"),
    "gated with biases": with_feed_forward(gated=True, bias=True),
    "swish": with_feed_forward(activation={"kind": "swish", "beta": 1.5}),
    "swish learned": with_feed_forward(activation={"kind": "swish", "learned": True}),
    "swish learned, gated": with_feed_forward(activation={"kind": "swish", "learned": True}, gated=True),
}

MIXTURES = {
    "experts": with_moe(),
    "plain experts": with_moe(expert={"intermediate_size": 16, "activation": "relu"}),
    "experts and a shared one": with_moe(shared={**GATED, "intermediate_size": 24}),
    "experts in groups": with_moe(
        shared=GATED,
        router={"scoring": "sigmoid", "num_groups": 4, "top_groups": 2, "group_score": "top2", "bias_correction": True},
    ),
    "one dense, then experts, latent": decoder(
        block(attention=LATENT), block(attention=LATENT, feed_forward=MOE, repeat=2)
    ),
}

MODELS = {
    "learned positions, tied": decoder(
        block(attention=attention(rope=None)), positions={"kind": "learned"}, tie_embeddings=True
    ),
    "sinusoidal positions": decoder(block(attention=attention(rope=None)), positions={"kind": "sinusoidal"}),
    "tied": decoder(tie_embeddings=True, embedding_scale=5.5, logit_softcap=30.0),
    "no final norm": decoder(final_norm=None),
    "a final norm behind post-norm": decoder(block(placement="post"), final_norm=LAYER),
    "dense and banded in turn": decoder(
        {"repeat": 2, "pattern": [block(), block(attention=attention(window=4, num_kv_heads=2))]}
    ),
    "five local to one global, and a rest": decoder(
        {"repeat": 2, "pattern": [block(repeat=5, attention=attention(window=4)), block()]},
        block(repeat=2, attention=attention(window=4)),
    ),
}

DENSE = {**PLACEMENTS, **ATTENTIONS, **FEED_FORWARDS, **MODELS}
ZOO = {**DENSE, **MIXTURES}
