"""Tokenizers from GGUF metadata give the ids that transformers gives."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from intaglio.checkpoints.gguf import open_gguf
from intaglio.checkpoints.gguf_tokenizer import PRE_TOKENIZERS
from intaglio.errors import UserError
from toy_gguf import BYTE_LEVEL, LLAMA, SENTENCE_PIECE, TEMPLATE, llama_tensors, write_gguf, write_llama

TEXTS = [
    "hello world",
    "  hello   hello",
    "hell\n\n\they'll  ",
    "x = 12 + 1.2  # hello",
    "你好 world 😀👩‍👧",
    "<|im_start|>user\nhello<|im_end|>\n<think><b>hello</b>",
    "<bos>hello<eos>",
    "",
    " ",
    "é ﬁ \u200b\x00",
]


def load(files: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(files["tokenizer.json"]))


def write(path: Path, metadata: dict[str, Any]) -> Path:
    return write_gguf(path, "llama", LLAMA | metadata, llama_tensors(vocab=300))


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "tekken"])
def test_byte_level_ids_are_those_of_transformers(pre: str, tmp_path: Path) -> None:
    write(tmp_path / "toy.gguf", BYTE_LEVEL | {"tokenizer.ggml.pre": pre})
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="toy.gguf")
    ours = load(open_gguf(tmp_path / "toy.gguf").tokenizer_files())
    for text in TEXTS:
        ids = ours.encode(text).ids
        assert ids == theirs(text)["input_ids"], text
        assert ours.decode(ids, skip_special_tokens=False) == text


def test_sentence_piece_ids_are_those_of_transformers(tmp_path: Path) -> None:
    keys = {key.replace("llama.", "gemma3."): value for key, value in LLAMA.items()}
    keys |= {"gemma3.attention.sliding_window": 8} | SENTENCE_PIECE
    tensors = {k: v for k, v in llama_tensors(vocab=300).items() if k != "blk.0.attn_bias"}
    write_gguf(tmp_path / "toy.gguf", "gemma3", keys, tensors)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="toy.gguf")
    ours = load(open_gguf(tmp_path / "toy.gguf").tokenizer_files())
    for text in TEXTS:
        ids = ours.encode(text).ids
        assert ids == theirs(text)["input_ids"], text
        assert ids[0] == 1
        assert ours.decode(ids[1:], skip_special_tokens=False) == text


def test_a_space_before_the_text_when_the_file_asks_for_it(tmp_path: Path) -> None:
    files = open_gguf(write(tmp_path / "toy.gguf", SENTENCE_PIECE | {"tokenizer.ggml.add_space_prefix": True}))
    tokenizer = load(files.tokenizer_files())
    assert tokenizer.encode("hello", add_special_tokens=False).tokens == ["▁hello"]
    assert tokenizer.decode(tokenizer.encode("hello <b>").ids) == "hello <b>"


def test_the_highest_score_is_joined_first(tmp_path: Path) -> None:
    tokens = ["<unk>", "a", "b", "c", "ab", "bc"]
    for scores, wanted in [([-1.0, -2.0], ["ab", "c"]), ([-2.0, -1.0], ["a", "bc"])]:
        keys = SENTENCE_PIECE | {
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [0.0, -10.0, -10.0, -10.0, *scores],
            "tokenizer.ggml.token_type": [2, 1, 1, 1, 1, 1],
        }
        tokenizer = load(open_gguf(write(tmp_path / "toy.gguf", keys)).tokenizer_files())
        assert tokenizer.encode("abc", add_special_tokens=False).tokens == wanted


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "don't 123  4", ["don", "'t", "Ġ123", "Ġ", "Ġ4"]),
        ("smollm", "don't 123  4", ["don", "'t", "Ġ", "1", "2", "3", "ĠĠ", "4"]),
        ("llama-bpe", "DON'T 12345 a\n\nb", ["DON", "'T", "Ġ", "123", "45", "Ġa", "ĊĊ", "b"]),
        ("qwen2", "don't 123  4", ["don", "'t", "Ġ", "1", "2", "3", "Ġ", "Ġ", "4"]),
        ("tekken", "helloWorld 12", ["hello", "World", "Ġ", "1", "2"]),
    ],
)
def test_text_is_cut_as_the_model_was_trained(name: str, text: str, pieces: list[str], tmp_path: Path) -> None:
    keys = {"tokenizer.ggml.pre": name}
    tokenizer = load(open_gguf(write_llama(tmp_path / "toy.gguf", metadata=keys)).tokenizer_files())
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == pieces


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_every_known_cut_loads_and_loses_nothing(name: str, tmp_path: Path) -> None:
    path = write_llama(tmp_path / "toy.gguf", metadata={"tokenizer.ggml.pre": name})
    tokenizer = load(open_gguf(path).tokenizer_files())
    for text in TEXTS[:5]:
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_begin_and_end_tokens(tmp_path: Path) -> None:
    keys = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    files = open_gguf(write_llama(tmp_path / "toy.gguf", metadata=keys)).tokenizer_files()
    tokens = load(files).encode("hello", "hello").tokens
    assert tokens == ["<|im_start|>", "hello", "<|im_end|>"] * 2
    assert files["tokenizer_config.json"]["add_bos_token"] is True


def test_what_stands_beside_the_tokenizer(tmp_path: Path) -> None:
    files = open_gguf(write_llama(tmp_path / "toy.gguf")).tokenizer_files()
    assert files["chat_template.jinja"] == TEMPLATE
    config = files["tokenizer_config.json"]
    assert (config["bos_token"], config["eos_token"], config["unk_token"]) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
    )
    assert config["model_max_length"] == 128


def test_special_user_defined_and_unused_tokens(tmp_path: Path) -> None:
    tokenizer = load(open_gguf(write_llama(tmp_path / "toy.gguf")).tokenizer_files())
    ids = tokenizer.encode("<|im_start|><think>[PAD9]").ids
    assert ids[:2] == [1, 268]
    assert 269 not in ids  # padding of the embedding is not a token
    assert tokenizer.decode(ids) == "<think>[PAD9]"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.ggml.pre": "qwen-2"}, r"pre-tokenizer 'qwen-2' is not known; did you mean qwen2"),
        ({"tokenizer.ggml.model": "bert"}, r"tokenizer kind 'bert' is not known; known: gpt2, llama"),
        ({"tokenizer.ggml.tokens": None}, r"'tokenizer\.ggml\.tokens' is missing"),
        ({"tokenizer.ggml.merges": None}, r"'tokenizer\.ggml\.merges' is missing"),
        ({"tokenizer.ggml.merges": ["h e", "he llo"]}, "the merge 'he llo' is not of two tokens"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "has 2 entries for 270 tokens"),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}, "adds 'bos'"),
        ({"tokenizer.ggml.tokens": ["a"] * 270}, "the same token twice"),
        ({"tokenizer.ggml.model": "llama"}, r"'tokenizer\.ggml\.scores' is missing"),
    ],
)
def test_what_is_wrong_is_named(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    opened = open_gguf(write_llama(tmp_path / "toy.gguf", metadata=metadata))
    with pytest.raises(UserError, match=message) as caught:
        opened.tokenizer_files()
    assert "toy.gguf" in str(caught.value)
