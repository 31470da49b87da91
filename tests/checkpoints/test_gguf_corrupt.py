"""A damaged GGUF file ends in one clear error: never a traceback, a huge allocation or an endless loop."""

import json
import random
import struct
import time
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from intaglio.checkpoints.gguf import open_gguf
from intaglio.errors import UserError
from toy_gguf import write_llama

torch.set_num_threads(1)

HEADER = 24  # magic, version, tensor count, key count


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_llama(tmp_path_factory.mktemp("whole") / "toy.gguf").read_bytes()


def read_all(path: Path) -> None:
    """Everything that can be asked of a GGUF file."""
    model = open_gguf(path)
    model.config(), model.generation_config()
    Tokenizer.from_str(json.dumps(model.tokenizer_files()["tokenizer.json"]))
    for name in model.tensor_names():
        model.tensor(name)


def test_the_whole_file_reads(whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "toy.gguf").write_bytes(whole)
    read_all(tmp_path / "toy.gguf")


@pytest.mark.parametrize("percent", range(100))
def test_cut_at_every_percent(whole: bytes, percent: int, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: len(whole) * percent // 100])
    with pytest.raises(UserError, match=r"cut\.gguf: .*(cut short|empty)") as caught:
        open_gguf(path)
    assert "\n" not in str(caught.value)


def test_every_byte_of_the_header_may_be_cut_away(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for length in range(1, 3000, 7):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"cut\.gguf: "):
            open_gguf(path)


@pytest.mark.parametrize(
    ("start", "replacement", "message"),
    [
        (0, b"GGML", "not a GGUF file"),
        (4, struct.pack("<I", 1), "version 1 is not supported"),
        (4, struct.pack(">I", 3), "not supported.*little-endian"),
        (8, struct.pack("<Q", 2**62), "corrupt"),
        (16, struct.pack("<Q", 2**62), "corrupt"),
        (24, struct.pack("<Q", 2**63), "corrupt"),
    ],
)
def test_absurd_beginnings(whole: bytes, start: int, replacement: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(whole[:start] + replacement + whole[start + len(replacement) :])
    with pytest.raises(UserError, match=message):
        open_gguf(path)


def _array_header(whole: bytes, key: bytes) -> int:
    """Where the count of the array under `key` stands."""
    return whole.index(key) + len(key) + 4 + 4


@pytest.mark.parametrize("key", [b"tokenizer.ggml.tokens", b"tokenizer.ggml.token_type"])
@pytest.mark.parametrize("count", [2**63, 2**40, 10**6])
def test_an_absurd_array_is_refused_at_once(whole: bytes, key: bytes, count: int, tmp_path: Path) -> None:
    where = _array_header(whole, key)
    path = tmp_path / "odd.gguf"
    path.write_bytes(whole[:where] + struct.pack("<Q", count) + whole[where + 8 :])
    began = time.perf_counter()
    with pytest.raises(UserError, match="cut short or corrupt"):
        open_gguf(path)
    assert time.perf_counter() - began < 1


def test_a_tensor_outside_the_file(whole: bytes, tmp_path: Path) -> None:
    name = b"blk.1.ffn_down.weight"
    where = whole.index(name) + len(name) + 4 + 2 * 8 + 4
    path = tmp_path / "odd.gguf"
    path.write_bytes(whole[:where] + struct.pack("<Q", 2**50) + whole[where + 8 :])
    with pytest.raises(UserError, match=r"'blk\.1\.ffn_down\.weight' reaches past the end"):
        open_gguf(path)


def test_random_damage_to_the_header_is_an_error_or_harmless(whole: bytes, tmp_path: Path) -> None:
    dice = random.Random(0)
    end_of_header = whole.index(b"blk.1.ffn_down.weight") + 100
    path = tmp_path / "odd.gguf"
    refused = 0
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(dice.choice([1, 1, 4])):
            damaged[dice.randrange(HEADER, end_of_header)] = dice.choice([0, 1, 9, 127, 255])
        path.write_bytes(damaged)
        try:
            read_all(path)
        except UserError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize("content", [b"", b"GG", b"GGUF", b"not a model at all, only text"])
def test_not_a_model(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.gguf: "):
        open_gguf(tmp_path / "x.gguf")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.gguf: cannot read: No such file"):
        open_gguf(tmp_path / "x.gguf")
