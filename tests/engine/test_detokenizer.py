"""Streaming: the pieces are the whole, no piece ends in half a character, and no token is decoded often."""

from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.engine.detokenizer import Detokenizer
from intaglio.text.tokenizer import Tokenizer
from toy_tokenizers import byte_level, sentencepiece


def metaspace_decoder() -> tokenizers.Tokenizer:
    backend = sentencepiece()
    backend.decoder = tokenizers.decoders.Metaspace(prepend_scheme="always")
    return backend


def gemma_like() -> tokenizers.Tokenizer:
    backend = sentencepiece()
    steps = [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    backend.decoder = tokenizers.decoders.Sequence(steps)
    return backend


def end_of_word() -> tokenizers.Tokenizer:
    vocab = {piece: i for i, piece in enumerate(["a", "b", "a</w>", "b</w>", "ab</w>", "<unk>"])}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[], end_of_word_suffix="</w>"))
    backend.decoder = tokenizers.decoders.BPEDecoder(suffix="</w>")
    return backend


def odd_added_tokens() -> tokenizers.Tokenizer:
    backend = byte_level()
    backend.add_tokens([tokenizers.AddedToken("é", normalized=False), tokenizers.AddedToken("你 好", normalized=False)])
    return backend


def word_pieces() -> tokenizers.Tokenizer:
    vocab = {piece: i for i, piece in enumerate(["[UNK]", "a", "##b", ".", "c", "'", "s"])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    backend.decoder = tokenizers.decoders.WordPiece()
    return backend


def no_decoder() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))


KINDS = [
    byte_level,
    odd_added_tokens,
    sentencepiece,
    metaspace_decoder,
    gemma_like,
    end_of_word,
    word_pieces,
    no_decoder,
]
TOKENIZERS = {build.__name__: Tokenizer(build()) for build in KINDS}


def stream(tokenizer: Tokenizer, ids: list[int], skip: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.add([i]) for i in ids), detokenizer.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=80)
@given(data=st.data(), skip=st.booleans())
def test_pieces_of_random_ids_are_the_whole(name: str, data: Any, skip: bool) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=24))
    assert "".join(stream(tokenizer, ids, skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece", "metaspace_decoder", "gemma_like"])
@settings(max_examples=80)
@given(text=st.text(st.sampled_from("a hi你好😀👩‍👩‍👧\u0301\n▁<"), max_size=16))
def test_pieces_of_text_never_hold_half_a_character(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
def test_half_a_character_shows_at_the_end_only(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode("hi 😀")[:-1]
    *pieces, last = stream(tokenizer, ids)
    assert "".join(pieces).rstrip() == "hi"
    assert last.endswith("\ufffd")
    assert "".join(pieces) + last == tokenizer.decode(ids)


def test_a_character_is_shown_as_soon_as_it_is_whole() -> None:
    tokenizer = TOKENIZERS["byte_level"]
    assert [piece for piece in stream(tokenizer, tokenizer.encode("é😀x")) if piece] == ["é", "😀", "x"]


def test_a_special_token_neither_shows_nor_eats_the_space_after_it() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    hi, ends = tokenizer.token_id("▁hi"), tokenizer.token_id("</s>")
    assert hi is not None
    assert ends is not None
    assert stream(tokenizer, [ends, hi, ends, hi]) == ["", "hi", "", " hi", ""]
    assert "".join(stream(tokenizer, [hi, ends, hi], skip=False)) == "hi</s> hi"


@pytest.mark.parametrize("name", ["sentencepiece", "end_of_word"])
def test_work_for_a_token_does_not_grow_with_the_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = TOKENIZERS[name]
    decoded = 0
    original = Tokenizer.decode

    def counting(self: Tokenizer, ids: Any, skip_special_tokens: bool = True) -> str:
        nonlocal decoded
        decoded += len(list(ids))
        return original(self, ids, skip_special_tokens)

    monkeypatch.setattr(Tokenizer, "decode", counting)
    ids = [i % 5 for i in range(300)] if name == "end_of_word" else tokenizer.encode("hi 你😀x " * 40)
    stream(tokenizer, ids)
    assert decoded <= 3 * len(ids)


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece", "metaspace_decoder", "gemma_like"])
@settings(max_examples=80)
@given(text=st.text(st.sampled_from("a hi你好😀é"), min_size=1, max_size=12), data=st.data())
def test_behind_a_prompt_only_what_is_new_is_given(name: str, text: str, data: Any) -> None:  # case 01
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text)
    split = data.draw(st.integers(1, len(ids)))
    detokenizer = Detokenizer(tokenizer, prompt=ids[:split])
    pieces = [*(detokenizer.add([i]) for i in ids[split:]), detokenizer.flush()]
    spelt = b"".join(map(tokenizer.token_bytes, ids)).decode()
    prompt = b"".join(map(tokenizer.token_bytes, ids[:split])).decode(errors="ignore")
    assert "".join(pieces) == spelt.removeprefix(prompt)


@pytest.mark.parametrize("name", ["byte_level", "sentencepiece"])
@pytest.mark.parametrize(
    ("bytes_given", "new", "shown"), [(2, "x", "x"), (2, "", ""), (1, "好", "好"), (3, "😀", "😀")]
)
def test_a_character_that_the_prompt_began_is_not_mended_for_it(
    name: str, bytes_given: int, new: str, shown: str
) -> None:  # case 01
    tokenizer = TOKENIZERS[name]
    prompt = [*tokenizer.encode("hi"), *tokenizer.encode("中", add_special_tokens=False)[-3:][:bytes_given]]
    ids = [i for i in tokenizer.encode(new) if tokenizer.token(i) != "▁"]
    detokenizer = Detokenizer(tokenizer, prompt=prompt)
    assert detokenizer.add(ids) + detokenizer.flush() == shown


def test_the_prompts_character_is_given_once_it_is_whole() -> None:  # case 01
    tokenizer = TOKENIZERS["byte_level"]
    *begun, last = tokenizer.encode("hi😀")
    detokenizer = Detokenizer(tokenizer, prompt=begun)
    assert [detokenizer.add([last]), detokenizer.add(tokenizer.encode("!")), detokenizer.flush()] == ["😀", "!", ""]


def test_the_bytes_of_a_character_come_one_by_one() -> None:  # case 02
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("😀!")
    assert len(ids) == 5
    assert stream(tokenizer, ids) == ["", "", "", "😀", "!", ""]
    assert stream(tokenizer, ids[:2]) == ["", "", "\ufffd"]
    assert tokenizer.decode(ids[:2]) == "\ufffd"
