"""Parts in words, the picture of a layer, and units."""

from typing import get_args

import pytest

from intaglio.lineage import preset
from intaglio.lineage.decoder_words import feed_forward_word, layer_picture
from intaglio.lineage.units import parse_count, short_bytes, short_count, short_flops
from intaglio.lineage.words import embeddings_in_words, layers_in_words, parts_in_words, picture
from intaglio.specs import DecoderSpec, FeedForwardSpec, Seq2SeqSpec
from intaglio.specs.decoder import Placement
from intaglio.specs.feed_forward import ActivationName
from tiny_pairs import PAIRS
from tiny_seq2seq import ZOO as SEQ2SEQ
from tiny_specs import DENSE, ZOO, block, decoder


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt1", "post-LayerNorm, learned, GELU, MHA 12"),
        ("llama-7b", "pre-RMSNorm, rotary, SwiGLU, MHA 32"),
        ("gpt3-175b", "pre-LayerNorm, learned, GELU, MHA 96, window 256 in 48/96"),
        ("deepseek-v3", "pre-RMSNorm, rotary (yarn), SwiGLU MoE 8/256+shared, MLA 128"),
        ("gemma3-270m", "sandwich-RMSNorm, rotary, GEGLU, MQA 4:1, QK-norm, window 512 in 15/18"),
        ("rnn", "RNN, tanh"),
        ("lstm", "LSTM, three gates and a cell state"),
        ("gru", "GRU, two gates, reset before the product"),
        ("seq2seq", "encoder-decoder, LSTM, no attention"),
        ("attention", "encoder-decoder, GRU, source both ways, additive attention before the cell"),
        ("attention-luong", "encoder-decoder, LSTM, general attention after the cell"),
        ("olmo2-32b", "residual-RMSNorm, rotary, SwiGLU, GQA 40:8, QK-norm"),
    ],
)
def test_parts_in_words(name: str, words: str) -> None:
    assert ", ".join(parts_in_words(preset(name).spec)) == words


@pytest.mark.parametrize("spec", ZOO.values(), ids=ZOO)
def test_everything_has_words_and_a_picture(spec: DecoderSpec) -> None:
    assert all(parts_in_words(spec))
    assert all(what for _, what in layers_in_words(spec))
    drawn = layer_picture(spec.blocks[0]).splitlines()
    assert drawn[0].startswith("x ─")
    assert drawn[0].endswith("▶")


CELLS = {
    "rnn": "h ─ U ─ + W x ─ tanh ─▶ h",
    "lstm": """\
c ─ * forget ─ + input * candidate ─┬──────────────────▶ c
                                    └ tanh ─ * output ─▶ h""",
    "gru": """\
h ─ * update ─ + (1 - update) * candidate ─▶ h
candidate = tanh(W x + U (reset * h))""",
}


@pytest.mark.parametrize("name", CELLS)
def test_the_picture_of_a_cell_is_its_road(name: str) -> None:
    assert picture(preset(name).spec) == CELLS[name]


def test_an_encoder_decoder_has_words_for_both_sides() -> None:
    spec = next(iter(PAIRS.values()))
    assert parts_in_words(spec)[0] == "encoder-decoder"
    assert [what for _, what in layers_in_words(spec) if what.endswith(":")] == [
        "encoder:",
        "decoder, and attention to the source:",
    ]
    assert picture(spec).startswith("x ─")
    assert "tokens" in embeddings_in_words(spec)


ROADS = {
    "seq2seq": "source ─ encoder ─▶ last state ─ decoder ─▶ target",
    "attention": """\
h before ─ score v tanh(W h + U m) ─ weights ─ context ─┐
token ──────────────────────────────────────────────────┴─ both ─ cell ─▶ h ─▶ next token""",
    "attention-luong": """\
h ─┬───────────────────────────────────┬─ both ─▶ next token
   └─ score h W m ─ weights ─ context ─┘""",
}


@pytest.mark.parametrize("name", ROADS)
def test_the_picture_of_a_seq2seq_is_how_the_source_comes_to_the_target(name: str) -> None:
    assert picture(preset(name).spec) == ROADS[name]


@pytest.mark.parametrize("spec", SEQ2SEQ.values(), ids=SEQ2SEQ)
def test_a_seq2seq_has_words_for_both_sides(spec: Seq2SeqSpec) -> None:
    assert [what for _, what in layers_in_words(spec) if what.endswith(":")] == ["encoder:", "decoder:"]
    assert "13 tokens" in embeddings_in_words(spec)
    assert ("no attention" in parts_in_words(spec)) == (spec.attention is None)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("activation", get_args(ActivationName))
def test_every_activation_has_a_word(activation: ActivationName, gated: bool) -> None:
    layer = FeedForwardSpec(intermediate_size=4, activation=activation, gated=gated)
    assert feed_forward_word(layer)
    assert any(
        activation == getattr(block.feed_forward, "activation", None)
        for spec in DENSE.values()
        for block in spec.blocks
    ), "tests/tiny_specs.py has no decoder with it: its bytes are held against nothing"


PICTURES = {
    "post": """\
x ─┬─────────+─ RMSNorm ─┬──────────+─ RMSNorm ─▶
   └─ MHA 4 ─┘           └─ SwiGLU ─┘""",
    "pre": """\
x ─┬───────────────────+─┬────────────────────+─▶
   └─ RMSNorm ─ MHA 4 ─┘ └─ RMSNorm ─ SwiGLU ─┘""",
    "residual": """\
x ─┬───────────────────+─┬────────────────────+─▶
   └─ MHA 4 ─ RMSNorm ─┘ └─ SwiGLU ─ RMSNorm ─┘""",
    "sandwich": """\
x ─┬─────────────────────────────+─┬──────────────────────────────+─▶
   └─ RMSNorm ─ MHA 4 ─ RMSNorm ─┘ └─ RMSNorm ─ SwiGLU ─ RMSNorm ─┘""",
    "parallel": """\
x ─┬────────────────────+─▶
   ├─ RMSNorm ─ MHA 4 ──┤
   └─ RMSNorm ─ SwiGLU ─┘""",
}


@pytest.mark.parametrize("placement", PICTURES)
def test_the_picture_shows_where_the_norm_stands(placement: str) -> None:
    assert PICTURES.keys() == set(get_args(Placement))
    assert layer_picture(decoder(block(placement=placement)).blocks[0]) == PICTURES[placement]


def test_counts() -> None:
    assert [short_count(n) for n in (116_534_784, 1_557_611_200, 174_604_259_328)] == ["116.5M", "1557.6M", "174.6B"]
    assert short_count(999) == "1.0K"
    assert [parse_count(text) for text in ("117M", "0.49B", "1.3B")] == [117_000_000, 490_000_000, 1_300_000_000]


def test_bytes_and_flops() -> None:
    assert [short_bytes(n) for n in (0, 1023, 1024, 73728, 2**40, 2**60)] == [
        "0.0 B", "1023.0 B", "1.0 KiB", "72.0 KiB", "1.0 TiB", "1048576.0 TiB",
    ]  # fmt: skip
    assert [short_flops(n) for n in (999_000, 250_900_000, 3_400_000_000, 2 * 10**12)] == [
        "1.0M", "250.9M", "3.4G", "2.0T",
    ]  # fmt: skip
