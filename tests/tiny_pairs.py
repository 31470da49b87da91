"""Tiny encoder-decoders, one for each thing their spec can say, and ragged pairs to feed them."""

from typing import Any

import torch
from torch import Tensor

from intaglio.models.encoder_decoder import EncoderDecoder
from intaglio.specs import EncoderDecoderSpec, validate

BIASES = {"q": True, "k": True, "v": True, "o": True}
LAYER = {"kind": "layer_norm"}
SOURCES = [[7, 3, 11, 40, 2], [40, 41, 42, 43, 44, 45, 46, 47, 48, 2], [5, 2], [9, 9, 30, 31, 12, 13, 2]]
TARGETS = [[1, 8, 3, 14], [1], [1, 50, 51, 52, 53, 54, 55, 56], [1, 20, 21]]
"""Each begins with the start token."""


def block(**fields: Any) -> dict[str, Any]:
    """A layer of 2017, or what is said otherwise."""
    feed_forward = {"intermediate_size": 48, "activation": "relu", "bias": True}
    attention = {"num_heads": 4, "bias": BIASES}
    return {"norm": LAYER, "placement": "post", "attention": attention, "feed_forward": feed_forward, **fields}


def pairs_spec(**fields: Any) -> EncoderDecoderSpec:
    """Three layers of source, two of target, 32 wide, or what is said otherwise."""
    usual = {
        "vocab_size": 64,
        "hidden_size": 32,
        "max_position_embeddings": 40,
        "start_token_id": 1,
        "encoder": {"layers": [block(repeat=3)]},
        "decoder": {"layers": [block(repeat=2)]},
    }
    spec: EncoderDecoderSpec = validate(EncoderDecoderSpec, {**usual, **fields})
    return spec


def both(layer: dict[str, Any], **fields: Any) -> EncoderDecoderSpec:
    """The same kind of layer on both sides."""
    stack = {"layers": [{**layer, "repeat": 2}]}
    return pairs_spec(**{"encoder": stack, "decoder": stack, **fields})


_GATED = {"intermediate_size": 48, "activation": "silu", "gated": True}
_ROTARY = {"num_heads": 4, "num_kv_heads": 2, "rope": {}}

PAIRS = {
    "2017": pairs_spec(tie_embeddings=True, embedding_scale=32**0.5, dropout=0.1),
    "three matrices, a bias on the logits": pairs_spec(logits_bias=True),
    "sines, then cosines": pairs_spec(positions={"kind": "sinusoidal", "layout": "halves"}),
    "learned positions, closing norms": both(
        block(placement="pre"), positions={"kind": "learned"}, tie_embeddings=True
    ),
    "rotary, grouped, gated, RMSNorm": both(
        block(placement="pre", norm={"kind": "rms_norm"}, attention=_ROTARY, feed_forward=_GATED), positions=None
    ),
    "norms over heads": both(block(attention={"num_heads": 4, "qk_norm": {"norm": LAYER}})),
    "norms over projections": both(block(attention={"num_heads": 4, "qk_norm": {"norm": LAYER, "over": "projection"}})),
    "sandwich": both(block(placement="sandwich")),
    "residual": both(block(placement="residual")),
    "a parallel encoder": pairs_spec(encoder={"layers": [block(placement="parallel", repeat=2)]}),
    "a window on the target": pairs_spec(
        decoder={"layers": [block(repeat=2, attention={"num_heads": 4, "window": 3})]}
    ),
    "soft-capped": both(block(attention={"num_heads": 4, "softcap": 5.0})),
    "experts": both(block(feed_forward={"kind": "moe", "num_experts": 4, "num_experts_per_tok": 2, "expert": _GATED})),
}


def random_pairs_model(spec: EncoderDecoderSpec, seed: int = 0, std: float = 0.3) -> EncoderDecoder:
    """Weights large enough to matter, norms and biases random too."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = EncoderDecoder(spec).eval()
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * std if parameter.ndim > 1 else parameter + 0.1 * torch.randn(1)
    if model.logits_bias is not None:
        model.logits_bias = torch.randn_like(model.logits_bias)
    model.tie_weights()
    return model


def padded_rows(rows: list[list[int]], pad: int = 0, extra: int = 0) -> tuple[Tensor, list[int]]:
    """(B, T), and the length of each row; padding on the right."""
    width = max(map(len, rows)) + extra
    return torch.tensor([row + [pad] * (width - len(row)) for row in rows]), [len(row) for row in rows]
