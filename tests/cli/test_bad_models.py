"""Directories and files that are damaged or wrong: one line that names the fault, status 2, nothing half-written."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from running import Run
from toy_gguf import write_llama

Damage = Callable[[Path], None]
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"


def cut(name: str, percent: int) -> Damage:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) * percent // 100])

    return damage


def config(**changes: Any) -> Damage:
    """Keys of config.json changed, or removed where the value is `...`."""

    def damage(folder: Path) -> None:
        data = json.loads((folder / CONFIG).read_text()) | changes
        (folder / CONFIG).write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))

    return damage


def write(name: str, content: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).write_text(content)

    return damage


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Damage:
    def damage(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change(found)
        save_file(found, folder / WEIGHTS, metadata={"format": "pt"})

    return damage


def reshape(found: dict[str, torch.Tensor]) -> None:
    found["model.norm.weight"] = torch.ones(31)


def forget(found: dict[str, torch.Tensor]) -> None:
    del found["model.layers.1.mlp.up_proj.weight"]


def corrupt_header(folder: Path) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[20] = 0xFF
    (folder / WEIGHTS).write_bytes(content)


DAMAGES: dict[str, tuple[Damage, str]] = {
    **{f"weights cut at {p}%": (cut(WEIGHTS, p), "corrupt or cut off") for p in (0, 1, 25, 50, 75, 99)},
    "corrupt header": (corrupt_header, "corrupt or cut off"),
    "no weights": (remove(WEIGHTS), "no weights: neither model.safetensors nor"),
    "wrong shape": (
        tensors(reshape),
        "tensor 'model.norm.weight' has shape [31], the config asks for [32]",
    ),
    "missing tensor": (
        tensors(forget),
        "tensor 'model.layers.1.mlp.up_proj.weight' is missing",
    ),
    "left-over tensor": (
        tensors(lambda found: found.update({"model.layers.0.mlp.extra.weight": torch.zeros(2, 3)})),
        "tensor 'model.layers.0.mlp.extra.weight' of shape [2, 3] is left over",
    ),
    "more layers than weights": (config(num_hidden_layers=3), "tensor 'model.layers.2."),
    "another width than the weights'": (config(intermediate_size=40), "the config asks for"),
    "config cut": (cut(CONFIG, 50), "config.json: not valid JSON"),
    "config is a list": (write(CONFIG, "[]"), "config.json"),
    "config without a width": (config(hidden_size=...), "missing key 'hidden_size'"),
    "config without a type": (config(model_type=...), "model_type"),
    "config of an unknown type": (config(model_type="lama"), "'lama'"),
    "config with a word for a number": (config(hidden_size="wide"), "hidden_size"),
    "heads that do not divide": (config(num_attention_heads=5, num_key_value_heads=2), "num_heads 5"),
    "an unknown key": (config(hiden_size=3), "hiden_size"),
    "an unknown activation": (config(hidden_act="mystery"), "mystery"),
    "a negative size": (config(vocab_size=-1), "vocab_size"),
    "no layers": (config(num_hidden_layers=0), "config.json: "),
    "an unknown dtype": (config(dtype="int3"), "unknown dtype 'int3'"),
    "no tokenizer": (remove(TOKENIZER), "there is no tokenizer.json"),
    "tokenizer cut": (cut(TOKENIZER, 50), "tokenizer.json: not a tokenizer"),
    "tokenizer config cut": (cut("tokenizer_config.json", 50), "tokenizer_config.json: not valid JSON"),
    "end token that is no id": (write("generation_config.json", '{"eos_token_id": "end"}'), "eos_token_id is 'end'"),
    "template of no Jinja": (write("chat_template.jinja", "{% for %}"), "the tokenizer's chat template"),
    "template that raises": (
        write("chat_template.jinja", "{{ raise_exception('roles must alternate') }}"),
        "the tokenizer's chat template: roles must alternate",
    ),
    "template that fails": (write("chat_template.jinja", "{{ messages[0]['content'] + 7 }}"), "fails with TypeError"),
    "template that leaves the sandbox": (
        write("chat_template.jinja", "{{ messages.__class__.__mro__[1].__subclasses__() }}"),
        "the tokenizer's chat template: tries to leave the sandbox",
    ),
    "template that writes nothing": (write("chat_template.jinja", "{# nothing #}"), "the prompt is empty"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_directory(run: Run, toy_dir: Path, tmp_path: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    folder = tmp_path / "model"
    shutil.copytree(toy_dir, folder)
    damage(folder)
    assert message in run("generate", folder, "hello", "--chat", "--max-tokens", 3).refusal


@pytest.mark.parametrize("verb", ["generate", "convert", "pull"])
@pytest.mark.parametrize("percent", [0, 1, 10, 50, 99])
def test_a_gguf_file_cut_short(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, percent: int
) -> None:
    monkeypatch.setenv("INTAGLIO_HOME", str(tmp_path / "home"))
    file, out = write_llama(tmp_path / "toy.gguf"), tmp_path / "out" / "model"
    cut(file.name, percent)(tmp_path)
    more: dict[str, list[object]] = {"generate": ["hello"], "convert": [out], "pull": []}
    ran = run(verb, file, *more[verb])
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.splitlines()[-1].startswith(f"intaglio: {file}: ")
    assert len(ran.err.splitlines()) == 1 + (verb == "pull")  # which says first what it is about to do
    models = tmp_path / "home" / "models"
    assert not out.exists()
    assert not out.parent.exists() or os.listdir(out.parent) == []
    assert not models.exists() or os.listdir(models) == []


FULL_DISK = """
import resource, signal, sys
from intaglio.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
main()
"""


@pytest.mark.parametrize("room", [100, 6_000, 60_000])
def test_a_disk_that_is_full_while_a_model_is_written(tmp_path: Path, room: int) -> None:
    """The system's limit on the size of files: writing fails as on a full disk, wherever it happens."""
    file, out = write_llama(tmp_path / "toy.gguf"), tmp_path / "out" / "model"
    command = [sys.executable, "-c", FULL_DISK, str(room), "convert", str(file), str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 2, ran.stderr
    assert ran.stderr.count("\n") == 1, ran.stderr
    assert ran.stderr.startswith("intaglio: ")
    assert not out.exists()
    assert not out.parent.exists() or os.listdir(out.parent) == []
