"""Specs as data: what is refused and how it is said, the way to YAML and back, one canonical form, frozen."""

import math
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from intaglio.errors import UserError
from intaglio.specs import BlockSpec, CycleSpec, DecoderSpec, load_yaml, validate
from tiny_specs import EXPERT, LATENT, MOE, RMS, WIDE, ZOO, attention, block, decoder

SIZES = {"vocab_size": 64, "hidden_size": 32, "max_position_embeddings": 32}


def message(*layers: Any, **fields: Any) -> str:
    """What a user reads about a decoder of those layers and fields."""
    with pytest.raises(UserError) as caught:
        validate(DecoderSpec, {**SIZES, "layers": list(layers or [block()]), **fields}, "model.yaml")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("model.yaml: ")
    return str(caught.value).removeprefix("model.yaml: ")


UNKNOWN = {
    "at the top": ({"hiden_size": 3}, "'hiden_size'; did you mean hidden_size"),
    "in a layer": (block(placment="pre"), "'layers.0.placment'; did you mean placement?"),
    "in attention": (
        block(attention=attention(num_kv_head=2)),
        "'layers.0.attention.num_kv_head'; did you mean num_kv",
    ),
    "in a cycle": (
        {"pattern": [block(), block(attention=attention(num_kv_head=2))]},
        "'layers.0.pattern.1.attention.num_kv_head'; did you mean num_kv_heads",
    ),
    "in rotary": (block(attention=attention(rope={"teta": 2})), "'layers.0.attention.rope.teta'; did you mean theta"),
    "in scaling": (
        block(attention=attention(rope={"scaling": {"kind": "linear", "factr": 2}})),
        "'layers.0.attention.rope.scaling.factr'; did you mean factor?",
    ),
    "in a norm": (block(norm={**RMS, "esp": 1}), "'layers.0.norm.esp'; did you mean eps?"),
    "in a feed-forward": (block(feed_forward={**WIDE, "gate": 1}), "'layers.0.feed_forward.gate'; did you mean gated?"),
    "in a swish": (
        block(feed_forward={**WIDE, "activation": {"kind": "swish", "bta": 1}}),
        "'layers.0.feed_forward.activation.bta'; did you mean beta",
    ),
    "in an expert": (
        block(feed_forward={**MOE, "expert": {**EXPERT, "gatd": 1}}),
        "'layers.0.feed_forward.expert.gatd'; did you mean gated?",
    ),
    "in a router": (
        block(feed_forward={**MOE, "router": {"scorin": "softmax"}}),
        "'layers.0.feed_forward.router.scorin'; did you mean scoring",
    ),
}


@pytest.mark.parametrize(("part", "expected"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_key_is_named_with_the_nearest(part: dict[str, Any], expected: str) -> None:
    said = message(**part) if "hiden_size" in part else message(part)
    assert f"unknown key {expected}" in said


CONTRADICTIONS = {
    "heads and groups": (block(attention=attention(num_kv_heads=3)), ["num_heads 4", "num_kv_heads 3"]),
    "heads and width": (block(attention={"num_heads": 5}), ["hidden_size 32", "num_heads 5", "head_dim"]),
    "rotary and head": (block(attention=attention(rope={"dim": 16})), ["rope.dim 16", "head_dim 8"]),
    "odd rotary": (block(attention=attention(head_dim=7)), ["head_dim 7", "even"]),
    "latent rotary": (block(attention={**LATENT, "rope": {"dim": 2}}), ["rope.dim 2", "qk_rope_head_dim 4"]),
    "experts": (block(feed_forward={**MOE, "num_experts_per_tok": 9}), ["num_experts_per_tok 9", "num_experts 8"]),
    "groups of experts": (block(feed_forward={**MOE, "router": {"num_groups": 3}}), ["num_experts 8", "num_groups 3"]),
    "chosen groups": (
        block(feed_forward={**MOE, "router": {"num_groups": 2, "top_groups": 3}}),
        ["top_groups 3", "num_groups 2"],
    ),
    "too few in the chosen groups": (
        block(feed_forward={**MOE, "num_experts_per_tok": 8, "router": {"num_groups": 4}}),
        ["num_experts_per_tok 8", "top_groups 1"],
    ),
    "two best of one": (
        block(feed_forward={**MOE, "router": {"num_groups": 8, "top_groups": 4, "group_score": "top2"}}),
        ["top2", "num_groups 8"],
    ),
    "experts with biases": (block(feed_forward={**MOE, "expert": {**EXPERT, "bias": True}}), ["experts", "biases"]),
    "ramp the wrong way": (
        block(
            attention=attention(
                rope={
                    "scaling": {
                        "kind": "llama3",
                        "factor": 8,
                        "low_freq_factor": 4,
                        "high_freq_factor": 1,
                        "original_max_position_embeddings": 16,
                    }
                }
            )
        ),
        ["low_freq_factor", "high_freq_factor"],
    ),
    "no layers of it": (block(repeat=0), ["layers.0.repeat"]),
    "no heads in a cycle": ({"pattern": [block(attention={"num_heads": 0})]}, ["pattern.0.attention.num_heads"]),
    "no such norm": (block(norm={"kind": "rmsnorm"}), ["layers.0.norm", "rms_norm"]),
    "no such attention": (block(attention={"kind": "mla"}), ["layers.0.attention", "latent_attention"]),
    "no such activation": (block(feed_forward={**WIDE, "activation": "gelo"}), ["feed_forward.activation", "'gelu'"]),
    "a norm left out": ({"attention": attention(), "feed_forward": WIDE}, ["layers.0.norm"]),
    "no layer": (5, ["layers.0"]),
    "an empty cycle": ({"pattern": []}, ["layers.0.pattern"]),
    "no cycle": ({"pattern": 5}, ["layers.0.pattern"]),
}


@pytest.mark.parametrize(("part", "words"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_contradiction_names_both_sides(part: Any, words: list[str]) -> None:
    said = message(part)
    assert all(word in said for word in words), said


@pytest.mark.parametrize("layers", [5, "all", {"repeat": 2}, [], None])
def test_layers_that_are_no_list_of_layers_are_refused(layers: Any) -> None:
    assert "layers" in message(layers=layers)


@pytest.mark.parametrize("scale", [math.nan, math.inf])
def test_numbers_are_finite(scale: float) -> None:
    assert "embedding_scale" in message(embedding_scale=scale)
    assert "rope.theta" in message(block(attention=attention(rope={"theta": scale})))


def test_sinusoids_come_in_pairs() -> None:
    layer = block(attention={"num_heads": 1, "head_dim": 8})
    assert "33" in message(layer, hidden_size=33, positions={"kind": "sinusoidal"})


@pytest.mark.parametrize("data", [5, None, [], "decoder"])
def test_what_is_no_mapping_is_refused(data: Any) -> None:
    with pytest.raises(UserError, match=r"model\.yaml"):
        validate(DecoderSpec, data, "model.yaml")


@given(st.recursive(st.none() | st.integers() | st.text(max_size=3), lambda some: st.lists(some, max_size=3)))
def test_no_layers_at_all_crash(layers: Any) -> None:
    assert "layers" in message(layers=layers)


@pytest.mark.parametrize("spec", ZOO.values(), ids=ZOO)
def test_yaml_and_back_is_the_same_model(spec: DecoderSpec) -> None:
    assert validate(DecoderSpec, yaml.safe_load(yaml.safe_dump(spec.plain()))) == spec


def test_plain_data_leaves_defaults_out_and_keeps_kinds() -> None:
    plain = decoder().plain()
    assert plain["kind"] == "decoder"
    assert plain["layers"][0]["attention"] == {
        "kind": "attention",
        "num_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 8,
        "rope": {},
    }


def test_yaml_that_is_none_names_the_file(tmp_path: Any) -> None:
    file = tmp_path / "model.yaml"
    file.write_text("layers: [")
    with pytest.raises(UserError, match=r"model\.yaml: not valid YAML"):
        load_yaml(file)
    with pytest.raises(UserError, match="cannot read"):
        load_yaml(tmp_path / "absent.yaml")


LOCAL, GLOBAL = block(attention=attention(window=4)), block()


def test_equal_models_are_equal_however_their_layers_are_written() -> None:
    one_by_one = [GLOBAL if layer % 6 == 5 else LOCAL for layer in range(26)]
    in_runs = [{**LOCAL, "repeat": 5}, GLOBAL]
    by_cycle = decoder({"repeat": 4, "pattern": in_runs}, {**LOCAL, "repeat": 2})
    assert decoder(*one_by_one) == by_cycle == decoder(*in_runs, *in_runs, *in_runs, *in_runs, LOCAL, LOCAL)
    assert hash(decoder(*one_by_one)) == hash(by_cycle)


def test_the_canonical_form_is_the_short_one() -> None:
    spec = decoder(*[GLOBAL if layer % 6 == 5 else LOCAL for layer in range(26)])
    cycle, rest = spec.layers
    assert isinstance(cycle, CycleSpec)
    assert isinstance(rest, BlockSpec)
    assert (cycle.repeat, [one.repeat for one in cycle.pattern], rest.repeat) == (4, [5, 1], 2)
    assert spec.num_layers == 26
    assert [one.attention.window for one in spec.blocks] == [None if n % 6 == 5 else 4 for n in range(26)]


@given(st.lists(st.sampled_from([4, 8, None]), min_size=1, max_size=12))
def test_grouping_loses_no_layer(windows: list[int | None]) -> None:
    spec = decoder(*[block(attention=attention(window=window)) for window in windows])
    assert [one.attention.window for one in spec.blocks] == windows
    assert decoder(*spec.plain()["layers"]) == spec


def test_sizes_left_open_are_filled_in() -> None:
    filled = decoder(block(attention={"num_heads": 4})).blocks[0].attention
    assert filled == decoder(block(attention={"num_heads": 4, "num_kv_heads": 4, "head_dim": 8})).blocks[0].attention


def test_the_last_norm_is_the_layers_own_unless_the_layers_end_in_one() -> None:
    assert (
        decoder(block(norm={"kind": "layer_norm", "eps": 0.5})).final_norm
        == decoder(
            block(norm={"kind": "layer_norm", "eps": 0.5}), final_norm={"kind": "layer_norm", "eps": 0.5}
        ).final_norm
    )
    assert decoder(block(placement="post")).final_norm is None
    assert decoder(final_norm=None).final_norm is None


def test_specs_are_frozen() -> None:
    spec = decoder()
    with pytest.raises(ValidationError, match="frozen"):
        spec.hidden_size = 64  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        spec.blocks[0].attention.num_heads = 2  # type: ignore[misc]


def test_a_changed_copy_is_validated() -> None:
    spec = decoder()
    assert spec.updated(vocab_size=128).vocab_size == 128
    assert spec.vocab_size == 64
    with pytest.raises(ValidationError):
        spec.updated(vocab_size=0)
