"""marian: the nearest open twin of the 2017 Transformer; post-norm, sinusoids in halves, a fixed bias on the logits."""

import math
from typing import Any

from intaglio.specs.attention import AttentionSpec, ProjectionBias
from intaglio.specs.decoder import BlockSpec
from intaglio.specs.encoder_decoder import EncoderDecoderSpec, StackSpec
from intaglio.specs.families import common
from intaglio.specs.families.config import Config, as_kind
from intaglio.specs.feed_forward import FeedForwardSpec
from intaglio.specs.norm import LayerNormSpec
from intaglio.specs.position import SinusoidalPositionsSpec

ARCHITECTURE = "MarianMTModel"

# Older files' keys that say nothing here: training, generation, and sizes said twice.
_SILENT = """_num_labels activation_dropout bad_words_ids classif_dropout decoder_layerdrop encoder_layerdrop
extra_pos_embeddings forced_eos_token_id init_std num_beams num_hidden_layers""".split()
_OTHERWISE = ("add_bias_logits", "add_final_layer_norm", "normalize_before", "normalize_embedding")


def read(config: Config) -> EncoderDecoderSpec:
    size, vocab_size = config.integer("d_model"), config.integer("vocab_size")
    config.expect("share_encoder_decoder_embeddings", True)
    config.expect("tie_word_embeddings", True)
    config.expect("decoder_vocab_size", vocab_size)
    config.expect("static_position_embeddings", True)
    for key in _OTHERWISE:
        config.expect(key, False)
    for key in _SILENT:
        config.raw(key, None)
    return EncoderDecoderSpec(
        vocab_size=vocab_size,
        hidden_size=size,
        max_position_embeddings=config.integer("max_position_embeddings"),
        positions=SinusoidalPositionsSpec(layout="halves"),
        embedding_scale=math.sqrt(size) if config.flag("scale_embedding", False) else None,
        encoder=_read_stack(config, "encoder"),
        decoder=_read_stack(config, "decoder"),
        dropout=config.number("dropout", 0.1),
        tie_embeddings=True,
        logits_bias=True,
        start_token_id=config.integer("decoder_start_token_id"),
    )


def _read_stack(config: Config, side: str) -> StackSpec:
    feed_forward = FeedForwardSpec(
        intermediate_size=config.integer(f"{side}_ffn_dim"),
        activation=config.choice("activation_function", common.ACTIVATIONS, "gelu"),
        bias=True,
    )
    heads, bias = config.integer(f"{side}_attention_heads"), ProjectionBias(q=True, k=True, v=True, o=True)
    block = BlockSpec(
        repeat=config.layers(f"{side}_layers"),
        norm=LayerNormSpec(),
        placement="post",
        attention=AttentionSpec(num_heads=heads, bias=bias),
        feed_forward=feed_forward,
    )
    return StackSpec(layers=(block,))


def write(spec: EncoderDecoderSpec) -> dict[str, Any]:
    feed_forward = as_kind(spec.encoder.blocks[0].feed_forward, FeedForwardSpec)
    return {
        "vocab_size": spec.vocab_size,
        "decoder_vocab_size": spec.vocab_size,
        "d_model": spec.hidden_size,
        "max_position_embeddings": spec.max_position_embeddings,
        **_write_stack(spec.encoder, "encoder"),
        **_write_stack(spec.decoder, "decoder"),
        "activation_function": common.activation_name(feed_forward.activation, tanh="gelu_new"),
        "scale_embedding": spec.embedding_scale is not None,
        "dropout": spec.dropout,
        "tie_word_embeddings": spec.tie_embeddings,
        "share_encoder_decoder_embeddings": spec.tie_embeddings,
        "is_encoder_decoder": True,
        "decoder_start_token_id": spec.start_token_id,
        "forced_eos_token_id": None,
    }


def _write_stack(stack: StackSpec, side: str) -> dict[str, Any]:
    block = stack.blocks[0]
    return {
        f"{side}_layers": len(stack.blocks),
        f"{side}_ffn_dim": as_kind(block.feed_forward, FeedForwardSpec).intermediate_size,
        f"{side}_attention_heads": as_kind(block.attention, AttentionSpec).num_heads,
    }
