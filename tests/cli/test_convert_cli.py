"""`intaglio convert`: a GGUF file becomes a directory that transformers opens."""

import json
import os
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import AutoModelForCausalLM, AutoTokenizer

from intaglio import LLM, load_model
from running import Run
from toy_gguf import write_llama


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "toy.gguf", kind=GGMLQuantizationType.Q8_0)


def test_transformers_opens_it_with_equal_logits(run: Run, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "toy"
    ran = run("convert", file, out, "--dtype", "float32")
    assert (ran.status, ran.out, ran.err) == (0, f"{out}\n", "")
    assert sorted(os.listdir(out)) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    llm, theirs = LLM(file, dtype="float32"), AutoModelForCausalLM.from_pretrained(out)
    text = "hello world 12"
    ids = llm.tokenizer.encode(text)
    assert AutoTokenizer.from_pretrained(out)(text)["input_ids"] == ids
    with torch.no_grad():
        logits = theirs(torch.tensor([ids])).logits
        torch.testing.assert_close(llm.model(torch.tensor([ids])), logits, rtol=0, atol=1e-5)
        torch.testing.assert_close(load_model(out)(torch.tensor([ids])), logits, rtol=0, atol=1e-5)


def test_it_says_what_the_file_says(run: Run, file: Path, tmp_path: Path) -> None:
    run("convert", file, tmp_path / "toy")
    options = ("hello", "--chat", "--max-tokens", 12, "--json")
    from_file, from_directory = run("generate", file, *options), run("generate", tmp_path / "toy", *options)
    assert json.loads(from_file.out)["token_ids"] == json.loads(from_directory.out)["token_ids"]


def test_json_and_dtype(run: Run, file: Path, tmp_path: Path) -> None:
    ran = run("convert", file, tmp_path / "toy", "--json")
    assert json.loads(ran.out) == {"path": str(tmp_path / "toy")}
    assert json.loads((tmp_path / "toy" / "config.json").read_text())["dtype"] == "bfloat16"


def test_what_exists_is_not_touched(run: Run, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    assert f"{out}: exists already" in run("convert", file, out).refusal
    assert (out / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.gguf", "{out}"], "nowhere.gguf: no such file"),
        (["{folder}", "{out}"], "no such file"),
        (["{noise}", "{out}"], "noise.gguf: "),
        (["{file}", "{out}", "--dtype", "float9"], "unknown dtype 'float9'"),
        (["{file}", "/dev/null/x"], "/dev/null/x: cannot write"),
        (["{file}"], "Missing argument"),
    ],
)
def test_what_cannot_be_converted(run: Run, file: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "noise.gguf").write_bytes(b"GGUF" + bytes(range(256)))
    places = {"file": file, "folder": tmp_path, "out": tmp_path / "out", "noise": tmp_path / "noise.gguf"}
    assert message in run("convert", *(argument.format(**places) for argument in arguments)).refusal
    assert not (tmp_path / "out").exists()
    assert sorted(os.listdir(tmp_path)) == ["noise.gguf", "toy.gguf"]
