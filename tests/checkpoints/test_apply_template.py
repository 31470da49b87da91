"""A chat template put on a base model: its tokens, their rows, where it stops; written whole, opened everywhere."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from intaglio.checkpoints.apply_template import apply_template
from intaglio.checkpoints.load import load_directory
from intaglio.checkpoints.models import load_tokenizer
from intaglio.checkpoints.save import save_model
from intaglio.errors import UserError
from intaglio.models.build import build_model
from intaglio.specs import validate_model
from intaglio.text.base_or_instruct import judge_directory, read_applied
from intaglio.text.chat import render_chat
from intaglio.text.chat_templates import load_template
from intaglio.text.template_checks import SAMPLES, check_template
from intaglio.text.tokenizer import Tokenizer
from tiny_specs import decoder
from toy_llms import random_model, save_toy
from toy_tokenizers import byte_level

ENDS = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}


def base(path: Path, special: tuple[str, ...] = ("<|endoftext|>",), more: int = 0, **ends: str) -> Path:
    """A base model with `more` rows than tokens."""
    tokenizer = Tokenizer(byte_level(special), ENDS | ends)
    model = random_model(decoder(vocab_size=tokenizer.num_ids + more, tie_embeddings=True))
    save_model(model, path, tokenizer, {"temperature": 0.6, "do_sample": True})
    return path


def test_new_tokens_get_mean_rows_and_all_of_it_is_written_down(tmp_path: Path) -> None:
    old = load_directory(base(tmp_path / "base"))
    done = apply_template(tmp_path / "base", tmp_path / "out")
    known = old.spec.vocab_size
    added = {"<|im_start|>": known, "<|im_end|>": known + 1}
    assert (done.template, done.was, done.ends, done.added_tokens) == ("chatml", "base", "<|im_end|>", added)
    assert done.vocab_size == (known, known + 2)
    new = load_directory(tmp_path / "out")
    assert torch.equal(new.embed_tokens.weight[:known], old.embed_tokens.weight)
    torch.testing.assert_close(new.embed_tokens.weight[known:], old.embed_tokens.weight.mean(0).expand(2, -1))
    tokenizer = load_tokenizer(tmp_path / "out")
    assert tokenizer.eos_token_ids == {0, known + 1}
    assert tokenizer.chat_template == load_template("chatml")
    assert check_template(tokenizer, new.spec.vocab_size).problems == []
    settings = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (settings["eos_token_id"], settings["temperature"]) == ([0, known + 1], 0.6)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == known + 2
    assert read_applied(tmp_path / "out") == json.loads(json.dumps(asdict(done)))
    assert judge_directory(tmp_path / "out").kind == "base"


def test_transformers_opens_it_and_writes_the_same_chat(tmp_path: Path) -> None:
    apply_template(base(tmp_path / "base"), tmp_path / "out", "llama3")
    ours = load_tokenizer(tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    for sample in SAMPLES:
        rendered = render_chat(ours, sample)
        assert theirs.apply_chat_template(sample, tokenize=False) == rendered.text
        assert theirs.apply_chat_template(sample, tokenize=True, return_dict=True)["input_ids"] == rendered.ids
    ids = torch.tensor([rendered.ids])
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, load_directory(tmp_path / "out")(ids), atol=2e-5, rtol=1e-5)


def test_tokens_that_are_there_and_padded_rows_are_used(tmp_path: Path) -> None:
    own = ("<|endoftext|>", "<start_of_turn>", "<end_of_turn>")
    done = apply_template(base(tmp_path / "a", own), tmp_path / "x")
    assert (done.template, done.added_tokens) == ("gemma", {})
    assert done.vocab_size[0] == done.vocab_size[1]
    padded = load_directory(base(tmp_path / "b", more=5))
    done = apply_template(tmp_path / "b", tmp_path / "y")
    assert done.vocab_size == (padded.spec.vocab_size,) * 2
    first = min(done.added_tokens.values())
    weight = load_directory(tmp_path / "y").embed_tokens.weight
    torch.testing.assert_close(weight[first : first + 2], padded.embed_tokens.weight[:first].mean(0).expand(2, -1))
    assert torch.equal(weight[first + 2 :], padded.embed_tokens.weight[first + 2 :])


def test_a_template_without_tokens_of_its_own_changes_no_row(tmp_path: Path) -> None:
    done = apply_template(base(tmp_path / "base"), tmp_path / "out", "alpaca")
    assert (done.ends, done.added_tokens) == ("<|endoftext|>", {})
    assert load_tokenizer(tmp_path / "out").eos_token_ids == {0}


def test_an_instruct_models_own_template_stays_unless_told_otherwise(tmp_path: Path) -> None:
    toy = save_toy(tmp_path / "toy")
    with pytest.raises(UserError, match="the model has a chat template of its own"):
        apply_template(toy, tmp_path / "out", "zephyr")
    assert not (tmp_path / "out").exists()
    assert apply_template(toy, tmp_path / "out", "zephyr", replace=True).was == "instruct"
    assert judge_directory(tmp_path / "out").kind == "unclear"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "nothing stands behind an answer"),
        (
            "{% for m in messages %}{{ m.content }}<|over|>{% endfor %}",
            "answers end in '<|over|>', which is no special",
        ),
        ("{% for m in messages %}{{ m.content + sep_token }}{% endfor %}", "'sep_token' is undefined"),
    ],
)
def test_a_template_that_cannot_end_an_answer_is_refused(source: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text(source)
    with pytest.raises(UserError, match=r"own\.jinja") as caught:
        apply_template(base(tmp_path / "base"), tmp_path / "out", str(tmp_path / "own.jinja"))
    assert problem in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_file_of_ones_own_names_its_tokens(tmp_path: Path) -> None:
    source = "{# tokens: <|over|> #}{% for m in messages %}{{ m.content }}<|over|>{% endfor %}"
    (tmp_path / "own.jinja").write_text(source)
    done = apply_template(base(tmp_path / "base"), tmp_path / "out", str(tmp_path / "own.jinja"))
    assert (done.ends, list(done.added_tokens)) == ("<|over|>", ["<|over|>"])


def test_what_reads_a_source_reads_no_chat(tmp_path: Path) -> None:
    tokenizer = Tokenizer(byte_level(("<|endoftext|>",)), ENDS)
    spec: dict[str, Any] = {"kind": "seq2seq", "vocab_size": tokenizer.num_ids, "embedding_size": 8, "hidden_size": 8}
    model = build_model(validate_model({**spec, "cell": {"kind": "gru"}, "start_token_id": 0}))
    save_model(model, tmp_path / "base", tokenizer)
    with pytest.raises(UserError, match="a model of kind seq2seq reads no conversations"):
        apply_template(tmp_path / "base", tmp_path / "out")
