"""`intaglio merge`, `show ADAPTER` and `--adapter`, on the toy model."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from intaglio.adapters.attach import attach
from intaglio.adapters.peft_files import save_adapter
from intaglio.checkpoints.models import load_model
from intaglio.cli.main import app
from intaglio.specs.adapter import LoRASpec


@pytest.fixture
def adapter(toy_dir: Path, tmp_path: Path) -> Path:
    """The directory of an adapter that does something."""
    model = load_model(toy_dir)
    attach(model, LoRASpec(r=2, lora_alpha=6))
    for name, parameter in model.named_parameters():
        if name.endswith("lora_B"):
            parameter.data.normal_(std=0.3)
    save_adapter(model, tmp_path / "adapter", base=str(toy_dir))
    return tmp_path / "adapter"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_merged_and_unmerged_generate_the_same(toy_dir: Path, adapter: Path, tmp_path: Path) -> None:
    report = json.loads(run("merge", str(toy_dir), str(adapter), str(tmp_path / "out"), "--json"))
    assert report["tokenizer"] == "base"
    assert report["same_choice"] == report["tokens"] > 0
    assert report["max_difference"] < 1e-2
    asked = ("abc", "--max-tokens", "8", "--temperature", "0", "--json")
    merged = json.loads(run("generate", str(tmp_path / "out"), *asked))
    beside = json.loads(run("generate", str(toy_dir), *asked, "--adapter", str(adapter)))
    assert merged["token_ids"] == beside["token_ids"]


def test_show(adapter: Path) -> None:
    shown = json.loads(run("show", str(adapter), "--json"))
    assert 0 < shown["trainable_share"] < 1
    assert all(0 < module["effective_rank"] <= module["r"] == 2 for module in shown["modules"])
    assert "effective rank" in run("show", str(adapter), "--rank")
