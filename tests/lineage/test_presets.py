"""The presets: published models by arithmetic, next to what was published."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from intaglio.errors import UserError
from intaglio.lineage import Generation, Preset, family_tree, generations, preset, presets
from intaglio.lineage.presets import FOLDER, _generation
from intaglio.specs import (
    AttentionSpec,
    BlockSpec,
    DecoderSpec,
    EncoderDecoderSpec,
    LatentAttentionSpec,
    MoESpec,
    RecurrentSpec,
    load_yaml,
)
from intaglio.specs.families import config_of, read_config

PRESETS = {one.name: one for one in presets()}
GENERATIONS = {one.name: one for one in generations()}
DECODERS = {name: one for name, one in PRESETS.items() if isinstance(one.spec, DecoderSpec)}
RECURRENT = ("rnn", "lstm", "gru")


def blocks(name: str) -> tuple[BlockSpec, ...]:
    """The layers of a decoder."""
    spec = preset(name).spec
    assert isinstance(spec, DecoderSpec)
    return spec.blocks


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("gpt1", 116_534_784),
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("gpt3-175b", 174_604_259_328),
        ("llama-7b", 6_738_415_616),
        ("llama3.1-405b", 405_853_388_800),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("deepseek-v2-lite", 15_706_484_224),
        ("deepseek-v3", 671_026_404_352),
        ("gemma3-270m", 268_098_176),
        ("olmo2-1b", 1_484_916_736),
        ("smollm2-135m", 134_515_008),
    ],
)
def test_known_models_count_what_their_weights_hold(name: str, count: int) -> None:
    assert preset(name).spec.num_parameters() == count


@pytest.mark.parametrize("one", PRESETS.values(), ids=PRESETS)
def test_counted_is_published_or_a_note_says_why_not(one: Preset) -> None:
    if one.published is None:
        assert one.note
        return
    off = abs(one.spec.num_parameters() / one.published - 1)
    assert off < 0.015 or one.note


@pytest.mark.parametrize("one", PRESETS.values(), ids=PRESETS)
def test_active_parameters_are_published_for_mixtures_only_and_match(one: Preset) -> None:
    active = one.spec.num_active_parameters()
    assert (one.published_active is not None) == (active < one.spec.num_parameters())
    if one.published_active:
        assert abs(active / one.published_active - 1) < 0.02 or one.note


GPT3_TABLE = {  # Brown et al. 2020, table 2.1: layers, width, heads, width of a head
    "gpt3-125m": (12, 768, 12, 64),
    "gpt3-350m": (24, 1024, 16, 64),
    "gpt3-760m": (24, 1536, 16, 96),
    "gpt3-1.3b": (24, 2048, 24, 128),
    "gpt3-2.7b": (32, 2560, 32, 80),
    "gpt3-6.7b": (32, 4096, 32, 128),
    "gpt3-13b": (40, 5140, 40, 128),
    "gpt3-175b": (96, 12288, 96, 128),
}


@pytest.mark.parametrize("name", GPT3_TABLE)
def test_gpt3_is_the_papers_table_and_a_note_tells_where_it_contradicts_itself(name: str) -> None:
    layers, width, heads, head_dim = GPT3_TABLE[name]
    one, spec = preset(name), preset(name).spec
    attentions = [block.attention for block in blocks(name)]
    assert (spec.num_layers, spec.hidden_size) == (layers, width)
    assert all(isinstance(a, AttentionSpec) and (a.num_heads, a.width) == (heads, head_dim) for a in attentions)
    assert [a.window for a in attentions] == [None, 256] * (layers // 2)
    assert ("contradicts itself" in one.note) == (heads * head_dim != width)


def test_what_changed_only_in_training_is_the_same_network() -> None:
    assert preset("chatgpt").spec is preset("instructgpt-175b").spec is preset("gpt3-175b").spec
    assert preset("instructgpt-6b").spec is preset("gpt3-6.7b").spec


@pytest.mark.parametrize("one", PRESETS.values(), ids=PRESETS)
def test_the_family_of_its_checkpoints_expresses_it_exactly(one: Preset) -> None:
    config = config_of(one.spec)
    assert read_config(config) == one.spec
    families = {"gpt1": "openai-gpt", "gemma3": "gemma3_text"}
    closed = one.generation.name in (
        "gpt3",
        "instructgpt",
        "chatgpt",
        *RECURRENT,
        "seq2seq",
        "attention",
        "transformer",
    )  # no released checkpoint, so no family
    expected = "intaglio" if closed else families.get(one.generation.name, re.split(r"[-.\d]", one.name)[0])
    assert config["model_type"].startswith(expected.replace("smollm", "llama"))


def test_details_that_are_easily_lost() -> None:
    def attention(name: str, layer: int = 0) -> AttentionSpec:
        found = blocks(name)[layer].attention
        assert isinstance(found, AttentionSpec)
        return found

    assert attention("gemma2-27b").softmax_scale == pytest.approx(144**-0.5)  # query_pre_attn_scalar
    assert attention("gemma3-27b").softmax_scale == pytest.approx(168**-0.5)
    assert attention("gemma3-270m").rope != attention("gemma3-270m", 5).rope
    assert [block.attention.window for block in blocks("gemma3-270m")[:6]] == [512] * 5 + [None]
    assert attention("qwen2-7b").bias.q
    assert not attention("qwen2-7b").bias.o
    assert preset("deepseek-v2-lite").spec.num_layers == 27
    v3 = blocks("deepseek-v3")
    assert [isinstance(block.feed_forward, MoESpec) for block in v3[:4]] == [False, False, False, True]
    assert isinstance(v3[0].attention, LatentAttentionSpec)


def test_recurrent_ones_are_as_large_as_each_other_and_differ_in_the_cell() -> None:
    rnn, lstm, gru = (preset(name).spec for name in RECURRENT)
    assert isinstance(rnn, RecurrentSpec)
    assert isinstance(lstm, RecurrentSpec)
    assert isinstance(gru, RecurrentSpec)
    assert rnn.updated(cell=lstm.cell) == lstm
    assert rnn.updated(cell=gru.cell) == gru
    around = 2 * 10_000 * 650
    assert lstm.num_parameters() - around == 4 * (rnn.num_parameters() - around)
    assert gru.num_parameters() - around == 3 * (rnn.num_parameters() - around)
    assert preset("lstm-large").spec.num_parameters() == 2 * 10_000 * 1500 + 2 * 4 * 3001 * 1500


def test_seq2seq_counts_the_papers_parts() -> None:
    """Sutskever et al., section 3.4: 384M, of which 64M are recurrent, 32M a side."""
    spec = preset("seq2seq").spec
    recurrent = spec.num_parameters() - 3 * 80_000 * 1000
    assert recurrent == 2 * 4 * 4 * 1000 * 2001 == 64_032_000
    assert recurrent + (160_000 + 2 * 80_000) * 1000 == pytest.approx(preset("seq2seq").published, rel=0.001)


@pytest.mark.parametrize("one", DECODERS.values(), ids=DECODERS)
def test_embeddings_are_scaled_by_the_root_of_the_width_where_they_are(one: Preset) -> None:
    assert isinstance(one.spec, DecoderSpec)
    scale = one.spec.embedding_scale
    assert (scale is not None) == (one.generation.name in ("gemma2", "gemma3"))
    assert scale is None or scale == one.spec.hidden_size**0.5


@pytest.mark.parametrize("generation", GENERATIONS.values(), ids=GENERATIONS)
def test_every_generation_says_what_it_changed_and_fills_its_holes(generation: Generation) -> None:
    sentences = re.findall(r"[.:?!](?:\s|$)", generation.changed)
    assert len(sentences) >= 2
    assert generation.parent is None or generation.parent in GENERATIONS
    assert generation.representative in generation.sizes
    holes = set(re.findall(r"'\$(\w+)'", repr(generation.model)))
    for one in generation.presets:
        assert set(one.holes) == ({} if one.same_as else holes) or not one.holes
        assert one.spec.num_parameters() > 0


def test_the_tree_has_its_roots_and_parents_come_first() -> None:
    order = [generation.name for generation in generations()]
    assert [one.name for one in generations() if one.parent is None] == ["rnn"]
    assert all(order.index(one.parent) < order.index(one.name) for one in generations() if one.parent)
    assert len(order) == len(list(FOLDER.glob("*.yaml"))) == len(set(order))
    assert all(GENERATIONS[one.parent].year <= one.year for one in generations() if one.parent)


def test_the_lines_of_the_tree_join() -> None:
    lines = {generation.name: line for line, generation in family_tree()}
    assert lines["rnn"] == ""
    assert lines["gpt2"] == "     └"
    assert lines["chatgpt"] == "       │└"


def test_preset_names_are_unique() -> None:
    assert len(PRESETS) == len(presets())


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown preset 'gpt2xl'; did you mean .*gpt2-xl"):
        preset("gpt2xl")


def test_one_preset_parses_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noted(file: Path) -> Any:
        read.append(file.stem)
        return load_yaml(file)

    monkeypatch.setattr(sys.modules["intaglio.lineage.presets"], "load_yaml", noted)  # the function hides the module
    _generation.cache_clear()
    assert preset("gpt2-xl").year == 2019
    assert read == ["gpt2"]


def test_the_transformers_counts_are_near_what_was_published() -> None:
    base, big = preset("transformer-base"), preset("transformer-big")
    assert (base.spec.num_parameters(), big.spec.num_parameters()) == (63_082_496, 214_245_376)
    assert isinstance(base.spec, EncoderDecoderSpec)
    assert base.spec.embedding_scale == 512**0.5
    assert "63.1M" in base.note
    assert "214.2M" in big.note
