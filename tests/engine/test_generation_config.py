"""Recommended parameters: beams as Marian's directories ask for them, sampling as chat models do."""

import json
from pathlib import Path
from typing import Any

import pytest

from intaglio.engine.generation_config import recommended_params
from intaglio.engine.sampling_params import SamplingParams
from toy_models import user_error

MARIAN = {
    "bad_words_ids": [[58100]],
    "decoder_start_token_id": 58100,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
    "max_length": 512,
    "num_beams": 6,
    "length_penalty": 0.6,
    "early_stopping": True,
    "pad_token_id": 58100,
    "renormalize_logits": True,
}


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (
            MARIAN,
            {
                "temperature": 0,
                "num_beams": 6,
                "length_penalty": 0.6,
                "early_stopping": True,
                "forbidden_token_ids": (58100,),
            },
        ),
        ({"do_sample": True, "temperature": 0.7, "top_p": 0.8}, {"temperature": 0.7, "top_p": 0.8}),
        ({"do_sample": True}, {}),
        ({"temperature": 0.7, "eos_token_id": 2}, {"temperature": 0}),
        ({"num_beams": 1, "length_penalty": 2.0}, {"temperature": 0}),
        (None, {"temperature": 0}),
    ],
)
def test_what_a_directory_recommends(config: dict[str, Any] | None, fields: dict[str, Any], tmp_path: Path) -> None:
    if config is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(config))
    assert recommended_params(tmp_path) == SamplingParams(**fields)
    assert recommended_params(tmp_path, max_tokens=9) == SamplingParams(**fields, max_tokens=9)


def test_what_makes_no_sense(tmp_path: Path) -> None:
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({"bad_words_ids": [[1, 2]]}))
    with user_error("bad_words_ids of several tokens", "generation_config.json"):
        recommended_params(tmp_path)
    file.write_text("[]")
    with user_error("not a JSON object"):
        recommended_params(tmp_path)
