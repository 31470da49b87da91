"""What differs between two models, and what that costs."""

import pytest

from intaglio.errors import UserError
from intaglio.lineage import preset
from intaglio.lineage.compare import compare, diff
from intaglio.specs import DecoderSpec
from tiny_pairs import PAIRS


def differences(a: str, b: str) -> dict[str, tuple[object, object]]:
    return {one.path: (one.old, one.new) for one in diff(preset(a).spec, preset(b).spec)}


def test_equal_models_do_not_differ() -> None:
    assert differences("gpt3-175b", "chatgpt") == {}


def test_only_what_differs_is_named() -> None:
    assert differences("llama3-8b", "llama3.1-8b") == {
        "max_position_embeddings": (8192, 131072),
        "layers.attention.rope.scaling": (
            None,
            {
                "kind": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        ),
    }


def test_depth_alone_is_one_difference() -> None:
    deeper = preset("gpt1").spec.plain()
    deeper["layers"][0]["repeat"] = 13
    found = diff(preset("gpt1").spec, DecoderSpec.model_validate(deeper))
    assert [(one.path, one.old, one.new) for one in found] == [("num_layers", 12, 13)]


def test_parts_of_another_kind_are_compared_whole() -> None:
    found = differences("qwen3-8b", "deepseek-v3")
    old, new = found["layers.attention"]
    assert isinstance(old, dict)
    assert isinstance(new, dict)
    assert (old["kind"], new["kind"]) == ("attention", "latent_attention")
    assert not [path for path in found if path.startswith("layers.attention.")]


def test_layers_that_differ_within_a_model_are_counted() -> None:
    window = differences("gpt2-xl", "gpt3-175b")["layers.attention.window"]
    assert window == (None, [{"value": None, "layers": 48}, {"value": 256, "layers": 48}])


def test_changes_are_the_costs_of_both() -> None:
    a, b = preset("llama2-7b").spec, preset("llama2-70b").spec
    changes = {one.name: one for one in compare(a, b, 4096, "float32").changes}
    assert (changes["num_parameters"].old, changes["num_parameters"].new) == (a.num_parameters(), b.num_parameters())
    assert changes["kv_cache_bytes"].new == b.kv_cache_bytes(4096, "float32")
    assert changes["kv_bytes_per_token"].ratio == 80 * 8 / (32 * 32)
    assert changes["flops_per_token"].old == a.flops_per_token(4096)


def test_another_cell_is_one_difference() -> None:
    assert differences("rnn", "lstm") == {"cell": ({"kind": "rnn", "activation": "tanh"}, {"kind": "lstm"})}


def test_models_of_another_kind_are_compared_as_far_as_they_go() -> None:
    found = differences("gru", "gpt1")
    assert found["kind"] == ("recurrent", "decoder")
    assert found["hidden_size"] == (650, 768)
    assert found["cell"] == ({"kind": "gru", "reset": "before"}, None)
    old, new = found["layers"]
    assert old is None
    assert isinstance(new, dict)
    assert new["placement"] == "post"


def test_both_sides_of_an_encoder_decoder_are_looked_into() -> None:
    spec = next(iter(PAIRS.values()))
    plain = spec.plain()
    plain["decoder"]["layers"][0]["placement"] = "sandwich"
    found = {one.path for one in diff(spec, type(spec).model_validate(plain))}
    assert found == {"decoder.layers.placement"}


def test_where_there_was_nothing_there_is_no_ratio() -> None:
    changes = {one.name: one for one in compare(preset("gru").spec, preset("gpt1").spec, 64, "float32").changes}
    assert changes["kv_bytes_per_token"].ratio is None


def test_a_context_too_long_for_one_of_them_names_both_numbers() -> None:
    with pytest.raises(UserError, match=r"1024.*512"):
        compare(preset("gpt2").spec, preset("gpt1").spec, 1024, "bfloat16")
