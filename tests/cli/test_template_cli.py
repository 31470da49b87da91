"""`intaglio template` and `intaglio export`: what they print, and with which status they end."""

import json
from pathlib import Path

import pytest

from intaglio.checkpoints.load import load_directory, load_gguf
from intaglio.checkpoints.save import save_model
from intaglio.text.chat_templates import template_names
from intaglio.text.tokenizer import Tokenizer
from running import Run
from tiny_specs import decoder
from toy_llms import random_model
from toy_tokenizers import byte_level


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "base"
    tokenizer = Tokenizer(byte_level(("<|endoftext|>",)), {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"})
    save_model(random_model(decoder(vocab_size=tokenizer.num_ids)), folder, tokenizer)
    return folder


def test_the_list_names_every_template_and_its_tokens(run: Run) -> None:
    rows = json.loads(run("template", "list", "--json").out)
    assert [row["name"] for row in rows] == template_names()
    assert {row["name"]: row["tokens"] for row in rows}["chatml"] == ["<|im_start|>", "<|im_end|>"]
    assert "alpaca" in run("template", "list").out


@pytest.mark.parametrize("name", template_names())
def test_a_template_is_shown_with_what_is_special_and_what_is_learned(run: Run, name: str) -> None:
    shown = json.loads(run("template", "show", name, "--json").out)
    learned = [shown["text"][start:end] for start, end in shown["learned"]]
    assert [text.strip().startswith(answer) for text, answer in zip(learned, ("Twelve", "As a"), strict=True)]
    assert shown["text"] in run("template", "show", name).out
    assert sum(token["learned"] for token in shown["tokens"]) >= len("Twelve of them.As a thumb.")


def test_colours_mark_special_tokens_and_the_supervised_span(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = run("template", "show", "chatml").out
    assert "\x1b[1;35m<|im_start|>" in out
    assert "\x1b[4;32mTwelve of them." in out


def test_a_conversation_of_ones_own_under_a_models_template(run: Run, toy_dir: Path, tmp_path: Path) -> None:
    chat = tmp_path / "chat.json"
    chat.write_text(json.dumps([{"role": "user", "content": "héllo"}]))
    shown = json.loads(run("template", "show", toy_dir, "--messages", chat, "--generation-prompt", "--json").out)
    assert shown["text"] == "<|im_start|>user\nhéllo<|im_end|>\n<|im_start|>assistant\n"
    assert shown["learned"] == []
    special = [token["token"] for token in shown["tokens"] if token["special"]]
    assert special == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]
    chat.write_text(json.dumps([{"role": "user"}]))
    ran = run("template", "show", "chatml", "--messages", chat)
    assert ran.status == 2
    assert "chat.json: messages[0].content: is missing" in ran.err


def test_a_template_whose_answers_cannot_be_told_says_so(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "own.jinja"
    file.write_text("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}")
    shown = json.loads(run("template", "show", file, "--json").out)
    assert shown["learned"] is None
    assert "cannot tell what the assistant wrote" in shown["why_not"]
    assert "cannot tell what the assistant wrote" in run("template", "show", file).out


def test_a_model_that_fits_and_one_that_does_not(run: Run, toy_dir: Path, base_dir: Path, tmp_path: Path) -> None:
    fits = run("template", "check", toy_dir)
    assert (fits.status, "They fit." in fits.out) == (0, True)
    bare = run("template", "check", base_dir, "--json")
    assert bare.status == 1
    assert json.loads(bare.out)["problems"] == ["the tokenizer has no chat template"]
    ran = run("template", "check", toy_dir, "--template", "chatml")
    assert (ran.status, "--template: is for data" in ran.err) == (2, True)


def test_data_that_another_template_has_written_in(run: Run, toy_dir: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    good = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
    rows.write_text(json.dumps(good) + "\n")
    assert run("template", "check", rows, "--model", toy_dir).status == 0
    odd = {"messages": [{"role": "user", "content": "[INST] hi [/INST]"}, {"role": "assistant", "content": "hello"}]}
    rows.write_text(json.dumps(good) + "\n" + json.dumps(odd) + "\n")
    ran = run("template", "check", rows, "--model", toy_dir, "--json")
    assert ran.status == 1
    (problem,) = json.loads(ran.out)["problems"]
    assert "rows.jsonl:2: messages[0] has [/INST], [INST] written in it" in problem
    ran = run("template", "check", rows, "--model", toy_dir, "--template", "llama3", "--json")
    assert any("<|eot_id|>, which is no token" in problem for problem in json.loads(ran.out)["problems"])


def test_apply_writes_a_model_that_chats(run: Run, base_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = run("template", "apply", base_dir, out, "--json")
    assert ran.status == 0
    assert json.loads(ran.out)["template"] == "chatml"
    assert run("template", "check", out).status == 0
    shown = json.loads(run("show", out, "--json").out)["kind"]
    assert shown["kind"] == "base"
    assert "put on by" in shown["reasons"][0]
    again = run("template", "apply", base_dir, out)
    assert (again.status, "exists already" in again.err) == (2, True)
    words = run("template", "apply", base_dir, tmp_path / "more", "--template", "phi3").out
    assert "template phi3; answers end in <|end|>" in words
    assert "new tokens: <|system|>" in words


def test_show_says_base_or_instruct_and_probes(run: Run, toy_dir: Path, base_dir: Path) -> None:
    assert "An instruct model" in run("show", toy_dir).out
    assert "A base model" in run("show", base_dir).out
    probed = json.loads(run("show", toy_dir, "--probe", "--json").out)["kind"]
    assert (probed["kind"], probed["probe"]["asked"]) == ("base", 8)  # random weights have learned nothing
    assert probed["probe"]["template"] == "its own template"
    assert json.loads(run("show", base_dir, "--probe", "--json").out)["kind"]["probe"]["template"] == "alpaca"
    ran = run("show", "gpt2", "--probe")
    assert (ran.status, "--probe: there is nothing to probe" in ran.err) == (2, True)
    assert json.loads(run("show", "gpt2", "--json").out)["kind"] is None


def test_export_writes_a_file_that_we_read(run: Run, toy_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "toy.gguf"
    report = json.loads(run("export", toy_dir, "--gguf", file, "--json").out)
    assert report == {"path": str(file), "type": "F16", "bytes": file.stat().st_size}
    assert load_gguf(file).spec == load_directory(toy_dir).spec
    assert run("template", "show", file, "--json").status == 0
    again = run("export", toy_dir, "--gguf", file)
    assert (again.status, "exists already" in again.err) == (2, True)
    ran = run("export", toy_dir, "--gguf", tmp_path / "x.gguf", "--type", "Q8")
    assert (ran.status, "did you mean Q8_0?" in ran.err) == (2, True)
