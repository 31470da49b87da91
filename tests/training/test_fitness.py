"""What a run warns of: few rows for a base model, a template over another, no end of answers, new rows that stay."""

import json
from pathlib import Path
from typing import Any

import pytest

from intaglio.checkpoints.apply_template import apply_template
from intaglio.checkpoints.save import save_model
from intaglio.specs import validate
from intaglio.text.chat_templates import load_template
from intaglio.text.tokenizer import Tokenizer
from intaglio.training.fitness import misfits
from intaglio.training.recipe import Recipe
from intaglio.training.start import build_tokenizer
from tiny_specs import decoder
from toy_llms import random_model, save_toy
from toy_tokenizers import byte_level

CHAT = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(CHAT) + "\n")
    return file


def base(path: Path) -> Path:
    ends = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    tokenizer = Tokenizer(byte_level(("<|endoftext|>",)), ends)
    save_model(random_model(decoder(vocab_size=tokenizer.num_ids)), path / "base", tokenizer)
    apply_template(path / "base", path / "ready")
    return path / "ready"


def warned(model: Path, data: Path, **more: Any) -> list[str]:
    recipe: Recipe = validate(Recipe, {"model": str(model), "data": str(data), "steps": 1, **more})
    return misfits(recipe, build_tokenizer(recipe))


def test_an_instruct_model_and_its_own_template_fit(tmp_path: Path, data: Path) -> None:
    assert warned(save_toy(tmp_path / "toy"), data) == []


def test_little_data_on_a_base_model(tmp_path: Path, data: Path) -> None:
    model = base(tmp_path)
    (few,) = warned(model, data)
    assert "is a base model" in few
    assert "1 conversations are few" in few
    data.write_text((json.dumps(CHAT) + "\n") * 1000)
    assert warned(model, data) == []
    data.write_text(json.dumps({"text": "just words"}) + "\n")
    assert warned(model, data) == []


def test_a_template_over_an_instruct_models_own(tmp_path: Path, data: Path) -> None:
    toy = save_toy(tmp_path / "toy")
    other = build_tokenizer(validate(Recipe, {"model": str(toy), "data": "x", "steps": 1}))
    other.with_template(load_template("zephyr")).save(tmp_path / "other")
    (over,) = warned(toy, data, tokenizer=str(tmp_path / "other"))
    assert "is put over" in over
    apply_template(toy, tmp_path / "replaced", "zephyr", replace=True)
    (replaced,) = warned(tmp_path / "replaced", data)
    assert "own chat template was replaced by zephyr" in replaced


def test_answers_that_end_where_the_model_does_not_stop(tmp_path: Path, data: Path) -> None:
    toy = save_toy(tmp_path / "toy")
    (toy / "chat_template.jinja").write_text(load_template("llama3"))
    (endless,) = warned(toy, data)
    assert "answers end in '<|eot_id|>', at which the model does not stop" in endless


def test_new_tokens_whose_rows_no_adapter_trains(tmp_path: Path, data: Path) -> None:
    data.write_text((json.dumps(CHAT) + "\n") * 1000)
    model = base(tmp_path)
    new = sorted(json.loads((model / "intaglio_template.json").read_text())["added_tokens"].values())
    (frozen,) = warned(model, data, adapter={"r": 2})
    assert f"adapter.trainable_token_indices={new}" in frozen
    assert warned(model, data, adapter={"r": 2, "trainable_token_indices": new}) == []
    assert warned(model, data, adapter={"r": 2, "modules_to_save": ["embed_tokens", "lm_head"]}) == []
