"""Weights on disk that are not what they should be: one line that names the file, never a crash, never a pickle."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from intaglio.checkpoints.load import load_directory
from intaglio.checkpoints.save import save_model
from intaglio.checkpoints.sources import SafetensorsSource
from intaglio.errors import UserError
from toy_models import change_tensors, toy_model, user_error, write_toy

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def test_reads_shapes_without_numbers_and_numbers_one_by_one(tmp_path: Path) -> None:
    write_toy(tmp_path / "m")
    expected = load_file(tmp_path / "m" / WEIGHTS)
    source = SafetensorsSource(tmp_path / "m")
    assert source.shapes() == {name: tuple(tensor.shape) for name, tensor in expected.items()}
    name = "model.norm.weight"
    assert torch.equal(source.tensor(name, torch.bfloat16), expected[name].bfloat16())


def test_a_tensor_outlives_its_file(tmp_path: Path) -> None:
    """The file is mapped: a model in memory must not change, or crash, when the file is written over."""
    write_toy(tmp_path / "m")
    tensor = SafetensorsSource(tmp_path / "m").tensor("model.norm.weight", torch.float32)
    before = tensor.clone()
    file = tmp_path / "m" / WEIGHTS
    with file.open("r+b") as opened:
        opened.write(bytes(file.stat().st_size))
    assert torch.equal(tensor, before)


@pytest.mark.parametrize("percent", range(100))
def test_cut_off_anywhere(tmp_path: Path, percent: int, whole: bytes) -> None:
    spoilt = _directory_with(tmp_path, whole[: len(whole) * percent // 100])
    with user_error(str(spoilt / WEIGHTS), "corrupt or cut off", "fetch the model again"):
        load_directory(spoilt)


@pytest.mark.parametrize("mask", [0x01, 0x2F, 0x80, 0xFF])
def test_every_corrupted_byte_of_the_header(tmp_path: Path, mask: int, whole: bytes) -> None:
    """Nothing but a `UserError` of one line, or a model: a flip in the metadata changes no weight."""
    length = 8 + int.from_bytes(whole[:8], "little")
    refused: list[str] = []
    spoilt = _directory_with(tmp_path, whole)
    for place in range(0, length, 5):
        corrupted = bytearray(whole)
        corrupted[place] ^= mask
        (spoilt / WEIGHTS).write_bytes(corrupted)
        try:
            load_directory(spoilt)
        except UserError as error:
            refused.append(str(error))
    assert all(str(spoilt) in line and "\n" not in line for line in refused)
    assert len(refused) > length // 5 * 0.9


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a small model's weights."""
    directory = tmp_path_factory.mktemp("whole") / "m"
    write_toy(directory, num_hidden_layers=1)
    return (directory / WEIGHTS).read_bytes()


def _directory_with(folder: Path, weights: bytes) -> Path:
    write_toy(folder / "m", num_hidden_layers=1)
    (folder / "m" / WEIGHTS).write_bytes(weights)
    return folder / "m"


def test_whole_numbers_are_no_weights(tmp_path: Path) -> None:
    """Packed quantised weights must not be taken for numbers."""
    write_toy(tmp_path / "m")
    change_tensors(tmp_path / "m", model__norm__weight=torch.ones(32, dtype=torch.int32))
    with user_error("model.norm.weight", "int32"):
        load_directory(tmp_path / "m")


def test_no_weights(tmp_path: Path) -> None:
    write_toy(tmp_path / "m")
    (tmp_path / "m" / WEIGHTS).unlink()
    with user_error(str(tmp_path / "m"), "no weights", WEIGHTS):
        load_directory(tmp_path / "m")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pt"])
def test_pickles_are_refused(tmp_path: Path, name: str) -> None:
    write_toy(tmp_path / "m")
    (tmp_path / "m" / WEIGHTS).rename(tmp_path / "m" / name)
    with user_error(str(tmp_path / "m"), "pickle", "safetensors"):
        load_directory(tmp_path / "m")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A model in several files."""
    save_model(toy_model(), tmp_path / "m", max_shard_bytes=20_000)
    return tmp_path / "m"


def test_a_missing_shard_is_named(sharded: Path) -> None:
    last = max(sharded.glob("*.safetensors"))
    last.unlink()
    with user_error(INDEX, last.name, "missing"):
        load_directory(sharded)


def test_a_shard_cut_off_is_named(sharded: Path) -> None:
    last = max(sharded.glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:-10])
    with user_error(last.name, "cut off"):
        load_directory(sharded)


def test_a_shard_without_its_tensors(sharded: Path) -> None:
    first, *_, last = sorted(sharded.glob("*.safetensors"))
    last.write_bytes(first.read_bytes())
    with user_error("is missing", str(sharded)):
        load_directory(sharded)


STOLEN = ["../stolen.safetensors", "sub/../../stolen.safetensors", "/{}/stolen.safetensors", ".."]


@pytest.mark.parametrize("outside", STOLEN)
def test_the_index_cannot_leave_the_directory(sharded: Path, outside: str) -> None:
    save_file({"x": torch.ones(1)}, sharded.parent / "stolen.safetensors")
    _change_index(sharded, outside.format(sharded.parent))
    with user_error(INDEX, "outside the directory"):
        load_directory(sharded)


def test_linked_shards_are_fine(sharded: Path) -> None:
    """The hub's own cache holds links to files elsewhere."""
    for number, file in enumerate(sorted(sharded.glob("*.safetensors"))):
        file.rename(sharded.parent / f"blob{number}")
        file.symlink_to(sharded.parent / f"blob{number}")
    assert load_directory(sharded).spec == toy_model().spec


def _change_index(directory: Path, shard: str) -> None:
    index = json.loads((directory / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = shard
    (directory / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"x": 3}}'])
def test_an_index_without_a_weight_map(sharded: Path, content: str) -> None:
    (sharded / INDEX).write_text(content)
    with user_error(INDEX, "weight_map"):
        load_directory(sharded)


def test_an_index_that_is_not_json(sharded: Path) -> None:
    (sharded / INDEX).write_text("{")
    with user_error(INDEX, "not valid JSON"):
        load_directory(sharded)
