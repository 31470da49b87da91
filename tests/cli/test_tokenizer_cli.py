"""`intaglio tokenizer train`: a folder of texts becomes a tokenizer."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from intaglio.text.tokenizer import Tokenizer
from running import Run

TEXT = "the cat sat on the mat and the dog sat on the log. " * 20


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "one.txt").write_text(TEXT)
    (folder / "two.md").write_text(TEXT.upper() + "你好")
    (folder / "picture.bin").write_bytes(b"\0\1\2")
    return folder


def test_it_says_what_it_learned_from(run: Run, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    ran = run("tokenizer", "train", texts, "--out", out, "--vocab-size", 280)
    assert (ran.status, ran.out) == (0, f"280 tokens from 2 files (1 skipped) in {out}\n")
    assert ran.err == f"skipped {texts / 'picture.bin'}: binary\n"
    ours, theirs = Tokenizer.from_directory(out), AutoTokenizer.from_pretrained(out)
    assert ours.vocab_size == 280
    assert ours.encode(TEXT + "你好") == theirs(TEXT + "你好")["input_ids"]
    assert len(ours.encode(TEXT)) < len(TEXT) / 2


def test_json_and_special_tokens(run: Run, texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "mine"
    names = ("--special", "<end>", "--special", "<pad>")
    ran = run("tokenizer", "train", texts, "--out", out, "--vocab-size", 270, *names, "--json")
    assert json.loads(ran.out) == {"path": str(out), "vocab_size": 270, "files": 2, "skipped": 1}
    tokenizer = Tokenizer.from_directory(out)
    assert tokenizer.eos_token == "<end>"
    assert [tokenizer.token(0), tokenizer.token(1)] == ["<end>", "<pad>"]


def test_the_texts_themselves_are_never_written_over(run: Run, texts: Path) -> None:
    assert f"{texts}: exists already" in run("tokenizer", "train", texts, "--out", texts).refusal
    assert (texts / "one.txt").read_text() == TEXT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{empty}"], "no text files to learn from"),
        (["{texts}/one.txt"], "not a folder"),
        (["{texts}", "--vocab-size", "100"], "a vocabulary of 100 cannot hold the 256 bytes"),
        (["{texts}", "--vocab-size", "many"], "--vocab-size"),
    ],
)
def test_what_cannot_be_learned_from(run: Run, texts: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "empty").mkdir()
    places = {"texts": texts, "empty": tmp_path / "empty"}
    words = [argument.format(**places) for argument in arguments]
    assert message in run("tokenizer", "train", *words, "--out", tmp_path / "mine").refusal
    assert not (tmp_path / "mine").exists()
