"""Base or instruct, by files alone; and what does not fit between a template, a tokenizer and a model."""

import json
from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.text.base_or_instruct import judge_directory, judge_tokenizer, turn_end, write_applied
from intaglio.text.chat import ChatTemplate, render_chat
from intaglio.text.chat_templates import (
    about_template,
    find_template,
    fitting_template,
    load_template,
    stand_in_tokenizer,
    template_names,
    tokens_of_template,
)
from intaglio.text.template_checks import SAMPLES, check_template
from intaglio.text.tokenizer import Tokenizer, add_border_tokens
from toy_tokenizers import FAMILY_TOKENS, byte_level, sentencepiece

ENDS = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
BARE = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
STOPS = '{"eos_token_id": [0, 2]}'  # <|endoftext|> and <|im_end|>


def saved(folder: Path, template: str | None = None, stops: str = "{}") -> Path:
    Tokenizer(byte_level(), ENDS, chat_templates=template).save(folder)
    (folder / "generation_config.json").write_text(stops)
    return folder


@pytest.mark.parametrize(
    ("template", "stops", "kind", "reason"),
    [
        (None, "{}", "base", "it stops at <|endoftext|>, which ends no turn"),
        (None, STOPS, "unclear", "yet it stops at <|im_end|>, which ends a turn"),
        ("chatml", STOPS, "instruct", "it stops at <|im_end|>, which ends an answer there"),
        ("chatml", "{}", "unclear", "answers end in '<|im_end|>' there, and it stops at <|endoftext|>, as base models"),
        ("zephyr", "{}", "instruct", "it stops at <|endoftext|>, which ends an answer there"),
        (BARE, "{}", "unclear", "nothing stands behind an answer there"),
        ("{{ raise_exception('no') }}", "{}", "unclear", "which cannot write one question and its answer (no)"),
    ],
)
def test_the_files_say_what_a_model_is(
    template: str | None, stops: str, kind: str, reason: str, tmp_path: Path
) -> None:
    source = load_template(template) if template in template_names() else template
    verdict = judge_directory(saved(tmp_path, source, stops))
    assert verdict.kind == kind
    assert any(reason in said for said in verdict.reasons)
    assert judge_tokenizer(Tokenizer.from_directory(tmp_path)) == verdict


def test_a_template_that_was_put_on_is_no_sign(tmp_path: Path) -> None:
    saved(tmp_path, load_template("chatml"), STOPS)
    write_applied(tmp_path, {"template": "chatml", "was": "base", "added_tokens": {}})
    verdict = judge_directory(tmp_path)
    assert verdict.kind == "base"
    assert "put on by `intaglio template apply`" in verdict.reasons[0]
    write_applied(tmp_path, {"template": "chatml", "was": "instruct", "added_tokens": {}})
    assert judge_directory(tmp_path).kind == "unclear"


def test_a_malformed_list_of_tokens_is_named(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"id": 1}]}')
    with pytest.raises(UserError, match=r"tokenizer\.json: malformed added_tokens: KeyError"):
        judge_directory(tmp_path)


@pytest.mark.parametrize("name", template_names())
def test_every_template_says_what_it_is_and_names_its_tokens(name: str) -> None:
    source = load_template(name)
    tokens = tokens_of_template(source)
    assert about_template(source)
    assert tokens is not None
    tokenizer = stand_in_tokenizer(source)
    rendered = render_chat(tokenizer, SAMPLES[2])
    assert all(token in source for token in tokens)
    assert tokenizer.special_token_ids >= {tokenizer.token_id(token) for token in tokens}
    assert any(turn_end(ChatTemplate(source, tokenizer.special_tokens)).startswith(end) for end in (*tokens, "</s>"))
    assert tokenizer.decode(rendered.ids, skip_special_tokens=False) == rendered.text
    assert not check_template(tokenizer.with_template(source, ends=tokens), rows=tokenizer.num_ids).problems


def test_a_template_that_names_no_tokens_is_taken_at_its_marks(tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{# Mine. #}{% for m in messages %}<|user|>{{ m.content }}{% endfor %}")
    source = find_template(str(file))
    assert (about_template(source), tokens_of_template(source)) == ("Mine.", None)
    assert stand_in_tokenizer(source).token_id("<|user|>") in stand_in_tokenizer(source).special_token_ids
    with pytest.raises(UserError, match="did you mean chatml"):
        find_template("chatmk")


def test_the_template_that_fits_a_vocabulary() -> None:
    assert fitting_template(Tokenizer(byte_level(()))) is None
    assert fitting_template(Tokenizer(byte_level())) == "chatml"
    assert fitting_template(Tokenizer(byte_level(("<start_of_turn>", "<end_of_turn>", "[INST]")))) == "gemma"
    assert fitting_template(Tokenizer(byte_level((*FAMILY_TOKENS, "<|im_end|>")))) == "llama3"


def test_new_special_tokens_get_the_next_ids_and_old_ones_keep_theirs(tmp_path: Path) -> None:
    first = Tokenizer(
        byte_level(("<|endoftext|>", "<|im_end|>")), ENDS, chat_templates={"default": "x", "tool_use": "y"}
    )
    template = load_template("chatml")
    second = first.with_template(template, ("<|im_start|>", "<|im_end|>"), ["<|im_end|>"])
    assert second.chat_templates == {"default": template}
    assert (second.token_id("<|im_start|>"), second.token_id("<|im_end|>")) == (first.num_ids, 1)
    assert second.eos_token_ids == {0, 1}
    assert second.num_ids == first.num_ids + 1
    assert first.token_id("<|im_start|>") is None
    second.save(tmp_path)
    again = Tokenizer.from_directory(tmp_path)
    assert again.encode("a<|im_start|> b<|im_end|>") == second.encode("a<|im_start|> b<|im_end|>")
    assert again.encode("héllo 你") == first.encode("héllo 你")


def test_a_token_that_was_ordinary_becomes_special() -> None:
    backend = byte_level(("<|endoftext|>",))
    backend.add_tokens(["<|im_end|>"])
    first = Tokenizer(backend, ENDS)
    second = first.with_template("x", ["<|im_end|>"])
    assert first.token_id("<|im_end|>") == second.token_id("<|im_end|>")
    assert second.special_token_ids - first.special_token_ids == {first.token_id("<|im_end|>")}


def test_a_new_token_never_takes_the_id_of_another() -> None:
    backend = byte_level()
    state = json.loads(backend.to_str())
    vocab = state["model"]["vocab"]
    vocab[max(vocab, key=lambda token: vocab[token])] += 1  # the largest id is the number of tokens
    gaps = Tokenizer(type(backend).from_str(json.dumps(state)), ENDS)
    assert gaps.num_ids == gaps.vocab_size + 1
    with pytest.raises(UserError, match="no room for new tokens: the ids have gaps"):
        gaps.with_template("x", ["<new>"])


@pytest.mark.parametrize(
    ("source", "rows", "problem"),
    [
        (None, None, "the tokenizer has no chat template"),
        ("chatml", None, "answers end in '<|im_end|>', and the model stops at <|endoftext|>"),
        ("llama3", None, "the template writes <|eot_id|>, which is no token of the model's"),
        (BARE + "<|odd|>", None, "the template writes <|odd|>, which is no token of the model's"),
        ("zephyr", 40, "the model has embeddings for 40 tokens"),
    ],
)
def test_what_does_not_fit_is_named(source: str | None, rows: int | None, problem: str) -> None:
    template = load_template(source) if source in template_names() else source
    check = check_template(Tokenizer(byte_level(), ENDS, chat_templates=template), rows)
    assert any(problem in one for one in check.problems)


def test_what_is_worth_knowing() -> None:
    changed = load_template("chatml").replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")
    changed = changed.replace("{%- for", "{%- if messages | length > 2 %}long {% endif %}{%- for", 1)
    notes = check_template(Tokenizer(byte_level(), ENDS, chat_templates=changed, eos_token_ids=[2])).notes
    assert any("what the assistant wrote cannot be told" in note for note in notes)
    assert "the template writes what chatml writes in 1 of 3 conversations" in notes
    named = {"bos_token": "<s>", "eos_token": "</s>"}
    backend = sentencepiece()
    add_border_tokens(backend, bos="<s>")
    double = check_template(Tokenizer(backend, named, chat_templates=load_template("llama2")))
    assert double.problems == []
    assert any("both write <s>" in note for note in double.notes)
    assert "the template writes what llama2 writes" in double.notes
