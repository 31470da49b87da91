"""A model to a directory: complete, the unwrapped names, tied weights once, and whole or not at all."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from intaglio.checkpoints import save
from intaglio.checkpoints.load import load_directory
from intaglio.checkpoints.save import save_model
from intaglio.models.decoder import Decoder
from intaglio.specs import DecoderSpec, validate
from intaglio.specs.families import read_config
from intaglio.text.tokenizer import Tokenizer
from toy_models import LLAMA_CONFIG, toy_model, user_error, write_toy
from toy_tokenizers import byte_level

IDS = torch.arange(24).view(2, 12) % 61


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_a_directory_is_complete(tmp_path: Path) -> None:
    """Case 2."""
    save_model(
        toy_model(vocab_size=300),
        tmp_path / "m",
        Tokenizer(byte_level(), chat_templates="{{ messages }}"),
        {"temperature": 0.7},
    )
    names = set(contents(tmp_path / "m"))
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    assert {"tokenizer_config.json", "chat_template.jinja"} <= names
    assert json.loads((tmp_path / "m" / "generation_config.json").read_text())["temperature"] == 0.7
    assert json.loads((tmp_path / "m" / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


def test_tied_weights_are_saved_once(tmp_path: Path) -> None:
    write_toy(tmp_path / "m", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(tmp_path / "m" / "model.safetensors")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["tie_word_embeddings"] is True


def test_weights_keep_their_dtype(tmp_path: Path) -> None:
    save_model(toy_model().bfloat16(), tmp_path / "m")
    assert {t.dtype for t in load_file(tmp_path / "m" / "model.safetensors").values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "m" / "config.json").read_text())["dtype"] == "bfloat16"
    assert load_directory(tmp_path / "m").lm_head.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("max_shard_bytes", [1, 10_000, 10**9])
def test_shards_hold_everything_once(tmp_path: Path, max_shard_bytes: int) -> None:
    model = toy_model()
    save_model(model, tmp_path / "m", max_shard_bytes=max_shard_bytes)
    shards = sorted((tmp_path / "m").glob("*.safetensors"))
    names = [name for shard in shards for name in load_file(shard)]
    assert len(names) == len(set(names)) == len(list(model.parameters()))
    if len(shards) == 1:
        assert shards[0].name == "model.safetensors"
    else:
        assert shards[0].name == f"model-00001-of-{len(shards):05d}.safetensors"
        sizes = [sum(tensor.nbytes for tensor in load_file(shard).values()) for shard in shards]
        largest = max(parameter.nbytes for parameter in model.parameters())
        assert all(size <= max(max_shard_bytes, largest) for size in sizes)
    with torch.no_grad():
        assert torch.equal(load_directory(tmp_path / "m")(IDS), model(IDS))


@pytest.mark.parametrize("failing", [0, 2])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing half-written replaces something whole, and nothing half-written stays."""
    write_toy(tmp_path / "m")
    before = contents(tmp_path / "m")
    _fill_the_disk(monkeypatch, failing)
    with user_error(str(tmp_path / "m"), "No space left on device"):
        save_model(toy_model(hidden_size=64), tmp_path / "m", max_shard_bytes=20_000)
    assert contents(tmp_path / "m") == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_a_full_disk_leaves_nothing_where_nothing_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fill_the_disk(monkeypatch, 1)
    with user_error(str(tmp_path / "new"), "No space left on device"):
        save_model(toy_model(), tmp_path / "new", max_shard_bytes=20_000)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_toy(tmp_path / "m")
    before = contents(tmp_path / "m")

    def interrupted(*_args: Any, **_more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(save, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_model(toy_model(hidden_size=64), tmp_path / "m")
    assert contents(tmp_path / "m") == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def _fill_the_disk(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """The file number `after` no longer fits."""
    written = 0

    def full(tensors: dict[str, Tensor], file: Path, metadata: dict[str, str]) -> None:
        nonlocal written
        if written == after:
            file.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        written += 1
        save_file(tensors, file, metadata)

    monkeypatch.setattr(save, "save_file", full)


def test_a_file_that_safetensors_cannot_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors wraps what the system says in an error of its own."""

    def full(*_args: Any, **_more: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    write_toy(tmp_path / "m")
    before = contents(tmp_path / "m")
    monkeypatch.setattr(save, "save_file", full)
    with user_error(str(tmp_path / "m"), "No space left on device"):
        save_model(toy_model(hidden_size=64), tmp_path / "m")
    assert contents(tmp_path / "m") == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


UNSPEAKABLE: dict[str, dict[str, Any]] = {
    "swish with beta": {"feed_forward": {"intermediate_size": 40, "activation": {"kind": "swish", "beta": 2.0}}},
    "learned beta": {
        "feed_forward": {"intermediate_size": 40, "gated": True, "activation": {"kind": "swish", "learned": True}}
    },
    "post-norm with rotary positions": {"placement": "post"},
    "one bias alone": {"attention": {"num_heads": 4, "rope": {}, "bias": {"k": True}}},
    "no positions at all": {"attention": {"num_heads": 4}},
}


@pytest.mark.parametrize("name", UNSPEAKABLE)
def test_what_no_family_says_is_saved_as_our_own(tmp_path: Path, name: str) -> None:
    layer = {
        "repeat": 2,
        "norm": {"kind": "rms_norm"},
        "attention": {"num_heads": 4, "rope": {}},
        "feed_forward": {"intermediate_size": 40},
        **UNSPEAKABLE[name],
    }
    sizes = {"vocab_size": 61, "hidden_size": 32, "max_position_embeddings": 64}
    spec: DecoderSpec = validate(DecoderSpec, {**sizes, "layers": [layer]})
    torch.manual_seed(0)
    model = Decoder(spec)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    save_model(model, tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["model_type"] == "intaglio"
    loaded = load_directory(tmp_path / "m")
    assert loaded.spec == spec
    with torch.no_grad():
        assert torch.equal(loaded(IDS), model(IDS))


def test_a_family_says_it_exactly_or_not_at_all(tmp_path: Path) -> None:
    """A spec one field away from llama is not saved as a llama."""
    spec = read_config(LLAMA_CONFIG)
    block = spec.blocks[0]
    save_model(Decoder(spec.updated(logit_softcap=3.0)), tmp_path / "m")
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "intaglio"
    assert load_directory(tmp_path / "m").spec != spec
    uneven = spec.updated(layers=[block, block.updated(feed_forward=block.feed_forward.updated(bias=True))])
    save_model(Decoder(uneven), tmp_path / "m")
    assert load_directory(tmp_path / "m").spec == uneven
