"""Tokenizers of whole characters and words."""

from pathlib import Path

import pytest

from intaglio.engine.detokenizer import Detokenizer
from intaglio.text.tokenizer import Tokenizer
from intaglio.text.whole_units import characters_of, words_of

TEXT = "明月 é\n𝄞ab"


def test_a_character_is_a_token() -> None:
    tokenizer = characters_of([TEXT])
    ids = tokenizer.encode(TEXT)
    assert len(ids) == len(TEXT) == len(set(ids))
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.vocab_size == len(TEXT) + 4
    assert tokenizer.token_bytes(tokenizer.encode("月")[0]) == "月".encode()


def test_what_is_unknown_has_one_id() -> None:
    tokenizer = characters_of([TEXT])
    assert tokenizer.encode("xy") == [tokenizer.unk_token_id] * 2


def test_special_tokens_come_first() -> None:
    for tokenizer in (characters_of([TEXT]), words_of([TEXT], 10)):
        named = (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
        assert named == (0, 1, 2, 3)


def test_the_most_frequent_are_kept() -> None:
    tokenizer = words_of(["the cat sat", "the dog sat", "the end"], 6)
    assert tokenizer.decode(tokenizer.encode("the  sat\n")) == "the sat"
    assert tokenizer.encode("the dog") == [4, tokenizer.unk_token_id]
    assert len({characters_of(["aabbc"], 6).encode(letter)[0] for letter in "abc"}) == 3


def test_text_comes_as_it_is_made() -> None:
    tokenizer = characters_of([TEXT])
    stream = Detokenizer(tokenizer)
    pieces = [stream.add([i]) for i in tokenizer.encode(TEXT)]
    assert pieces == list(TEXT)


@pytest.mark.parametrize("text", [TEXT, "x y"])
def test_saved_and_read(text: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    for make in (characters_of, words_of):
        tokenizer = make([TEXT])
        tokenizer.save(tmp_path / make.__name__)
        ids = tokenizer.encode(text)
        assert Tokenizer.from_directory(tmp_path / make.__name__).encode(text) == ids
        assert AutoTokenizer.from_pretrained(tmp_path / make.__name__)(text)["input_ids"] == ids
