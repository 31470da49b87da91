"""Sampling parameters: what is out of range, idle or contradictory is named."""

from typing import Any

import pytest

from intaglio.engine.sampling_params import SamplingParams, Structured
from intaglio.errors import UserError


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1}, "temperature: .*greater than or equal to 0"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p: .*greater than 0, not 0"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens 5 is more than max_tokens 4"),
        ({"stop": ["a", ""]}, "empty stop string"),
        ({"n": 0}, "n: "),
        ({"presence_penalty": 2.5}, "presence_penalty: .*less than or equal to 2, not 2.5"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5: .*not 101"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x"),
        ({"bad_words": ["a", " "]}, "an empty bad word"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids"),
        ({"allowed_token_ids": [1], "structured": Structured(kind="json_object")}, "no place beside structured"),
        ({"logprobs": -1}, "logprobs"),
        ({"structured": {"kind": "xml"}}, "kind: .*not 'xml'"),
        ({"num_beams": 2, "temperature": 0, "n": 2}, "n has no effect with num_beams 2"),
        ({"num_beams": 2, "temperature": 0, "logprobs": 0}, "logprobs has no effect with num_beams 2"),
        ({"temprature": 1}, "temprature: there is no such sampling parameter; did you mean temperature"),
    ],
)
def test_bad_parameters_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        SamplingParams(**values)


def test_zero_is_honoured_and_one_stop_string_may_stand_alone() -> None:
    params = SamplingParams(temperature=0, stop="END")
    assert params.greedy
    assert params.stop == ("END",)
    assert not SamplingParams().greedy


def test_keys_of_a_bias_may_be_the_texts_that_json_makes_of_them() -> None:
    assert SamplingParams(logit_bias={"5": -100}).logit_bias == {5: -100.0}


def test_a_shape_needs_its_value_and_any_object_has_none() -> None:
    assert Structured(kind="regex", value="a+").value == "a+"
    with pytest.raises(UserError, match="regex needs a value"):
        Structured(kind="regex")
    with pytest.raises(UserError, match="json_object takes no value"):
        Structured(kind="json_object", value="{}")
    with pytest.raises(UserError, match="kind"):
        Structured(kind="xml")


def test_parameters_survive_json() -> None:
    params = SamplingParams(logit_bias={3: 1.5}, stop=["a"], structured=Structured(kind="json_schema", value="{}"))
    assert SamplingParams.model_validate_json(params.model_dump_json()) == params
