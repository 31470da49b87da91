"""Training a tokenizer: the same files, the same tokenizer; what is not text is skipped and listed."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from intaglio.errors import UserError
from intaglio.text.train import train_on, train_tokenizer


def corpus(folder: Path) -> Path:
    (folder / "b").mkdir(parents=True)
    (folder / "a.txt").write_text("the cat sat on the mat\r\n" * 50)
    (folder / "b" / "c.md").write_text("你好，世界 😀 the cat\n" * 50, encoding="utf-8")
    return folder


def test_the_same_files_give_the_same_tokenizer(tmp_path: Path) -> None:
    first = train_tokenizer(corpus(tmp_path / "one"), 280).tokenizer
    second = train_tokenizer(corpus(tmp_path / "two"), 280).tokenizer
    first.save(tmp_path / "first")
    second.save(tmp_path / "second")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    text = "the cat\r\n 世界 é \0"
    assert first.vocab_size == 280
    assert first.decode(first.encode(text)) == text
    assert len(first.encode("the cat")) < 5
    assert AutoTokenizer.from_pretrained(tmp_path / "first").encode(text) == first.encode(text)


def test_special_tokens_come_first_and_the_first_of_them_ends_a_text(tmp_path: Path) -> None:
    made = train_tokenizer(corpus(tmp_path / "x"), 280, ["<end>", "<|im_start|>"]).tokenizer
    assert made.encode("<|im_start|>a<end>")[::2] == [1, 0]
    assert made.eos_token_ids == {0}
    assert made.bos_token_id == 0
    assert not made.adds_bos


def test_what_is_not_text_is_skipped_and_listed(tmp_path: Path) -> None:
    folder = corpus(tmp_path / "x")
    (folder / "image.bin").write_bytes(b"\x89PNG\0")
    (folder / "latin.txt").write_bytes("é".encode("latin-1"))
    (folder / "cut.txt").write_bytes("a€".encode()[:-1])
    (folder / "empty.txt").write_bytes(b"")
    (folder / ".hidden").write_text("not seen")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("not seen")
    made = train_tokenizer(folder, 300)
    assert [file.name for file in made.files] == ["a.txt", "c.md"]
    assert {item.path.name: item.reason for item in made.skipped} == {
        "image.bin": "binary",
        "latin.txt": "not UTF-8",
        "cut.txt": "not UTF-8",
        "empty.txt": "empty",
    }


def test_no_token_reaches_across_the_pattern() -> None:
    text = "def f(self):\n    return self.x\n" * 50
    plain = train_on([text], 400)
    split = train_on([text], 400, pattern=r" ?[A-Za-z]+|\n[ \n]*|[ \t]+|\s+|[^\w\s]|\w")
    pieces = [split.decode([i]) for i in split.encode(text)]
    assert {"(", ")", ":", "\n    ", "self", " self"} <= set(pieces)
    assert "".join(pieces) == text == split.decode(split.encode(text))
    assert "):" in [plain.decode([i])[:2] for i in plain.encode(text)]
    with pytest.raises(UserError, match=r"tokenizer\.pattern: not a regular expression"):
        train_on([text], 400, pattern="(")


def test_bad_requests_end_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a folder"):
        train_tokenizer(tmp_path / "none", 300)
    with pytest.raises(UserError, match="no text files to learn from; put"):
        train_tokenizer(tmp_path, 300)
    (tmp_path / "x").write_bytes(b"\0")
    with pytest.raises(UserError, match=r"\(1 skipped, the first because it is binary\)"):
        train_tokenizer(tmp_path, 300)
    with pytest.raises(UserError, match=r"a vocabulary of 256 .*; take at least 257"):
        train_tokenizer(tmp_path, 256)
    with pytest.raises(UserError, match="at least one special token"):
        train_tokenizer(tmp_path, 300, [])
