"""`show`, `lineage` and `diff` as a user meets them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from intaglio.cli.diff import diff
from intaglio.cli.lineage import lineage
from intaglio.cli.show import show
from intaglio.errors import UserError
from intaglio.files import write_json
from intaglio.lineage import generations, preset, presets
from intaglio.specs import DecoderSpec, validate
from intaglio.specs.families import config_of

APP = typer.Typer()
for verb in (show, lineage, diff):
    APP.command()(verb)


def run(*words: str, columns: int = 100) -> str:
    """What the command prints."""
    result: Result = CliRunner().invoke(APP, list(words), env={"COLUMNS": str(columns)})
    if result.exception:
        raise result.exception
    return result.output


def data(*words: str) -> Any:
    """What the command prints as JSON."""
    return json.loads(run(*words, "--json"))


@pytest.mark.parametrize(
    ("name", "counted", "published"),
    [("gpt1", "116.5M", "117M"), ("gpt2-xl", "1557.6M", "1542M"), ("gpt3-175b", "174.6B", "175B")],
)
def test_show_puts_counted_beside_published(name: str, counted: str, published: str) -> None:
    text = run("show", name)
    assert f"{counted}  " in text
    assert f"{preset(name).spec.num_parameters():,}; published {published}" in text
    assert preset(name).note in " ".join(text.split())
    assert ("Counted and published" in text) == bool(preset(name).note)


def test_show_as_json_has_the_costs_and_the_whole_spec() -> None:
    shown, spec = data("show", "mixtral-8x7b", "--context", "64", "--dtype", "float32"), preset("mixtral-8x7b").spec
    assert shown["num_parameters"] == spec.num_parameters()
    assert shown["num_active_parameters"] == spec.num_active_parameters()
    assert shown["kv_bytes_per_token"] == spec.kv_bytes_per_token("float32")
    assert shown["kv_cache_bytes"] == spec.kv_cache_bytes(64, "float32")
    assert shown["flops_per_token"] == spec.flops_per_token(64)
    assert shown["published_parameters"] == 46_700_000_000
    assert validate(DecoderSpec, shown["spec"]) == spec


def test_show_reads_a_directory(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", config_of(preset("smollm2-135m").spec))
    shown = data("show", str(tmp_path))
    assert shown["num_parameters"] == 134_515_008
    assert shown["published_parameters"] is None
    assert "134.5M" in run("show", str(tmp_path))


@pytest.mark.parametrize("one", presets(), ids=[one.name for one in presets()])
def test_show_fits_80_columns(one: Any) -> None:
    assert max(map(len, run("show", one.name, columns=80).splitlines())) <= 80


@pytest.mark.parametrize("words", [("show", "gpt1", "--context", "513"), ("diff", "gpt1", "gpt2", "--context", "0")])
def test_a_context_that_does_not_fit_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=f"{words[-1]} tokens.*512"):
        run(*words)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UserError, match="float16"):
        run("show", "gpt1", "--dtype", "float17")


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_lineage_is_whole_at_every_width(columns: int) -> None:
    text = run("lineage", columns=columns)
    assert max(map(len, text.splitlines())) <= columns
    for generation in generations():
        assert f"{generation.representative} " in text
        assert f"{generation.title} {generation.year}" in text
    said = " ".join(text.split())
    assert all(generation.changed in said for generation in generations())
    assert "…" not in text


def test_lineage_has_one_size_a_generation_or_all() -> None:
    assert [row["name"] for row in data("lineage")] == [one.representative for one in generations()]
    rows = data("lineage", "--all")
    assert [row["name"] for row in rows] == [one.name for one in presets()]
    row = next(row for row in rows if row["name"] == "gpt1")
    assert row["context"] == 512
    assert row["flops_per_token"] == preset("gpt1").spec.flops_per_token(512)
    assert row["kv_bytes_per_token"] == 2 * 12 * 768 * 2
    assert "instructgpt-1.3b" in run("lineage", "--all")


def test_diff_names_parts_and_costs() -> None:
    text = run("diff", "llama2-70b", "deepseek-v3")
    assert "latent_attention" in text
    assert "320.0 KiB" in text
    assert "68.6 KiB" in text
    assert "x 0.214" in text
    found = data("diff", "llama2-70b", "deepseek-v3")
    assert found["costs"]["num_parameters"]["new"] == 671_026_404_352
    assert {"path": "num_layers", "old": 80, "new": 61} in found["differences"]


def test_diff_of_the_same_says_so() -> None:
    assert "same model" in run("diff", "gpt3-175b", "chatgpt")


def test_the_verbs_load_no_torch() -> None:
    code = "import sys, intaglio.cli.diff, intaglio.cli.lineage, intaglio.cli.show; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
