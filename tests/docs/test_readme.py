"""What the README says is run: its commands, its Python and its numbers; in both languages."""

import re
import shlex
from contextlib import nullcontext
from pathlib import Path

import pytest

from doc_commands import Reader
from doc_pages import ROOT, blocks, without_comments
from intaglio.lineage.presets import generations, presets
from intaglio.serving.beside import served
from intaglio.specs.families import ENCODER_DECODERS, FAMILIES

ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")
COMMANDS = [
    line for block in blocks(ENGLISH, "bash") for line in without_comments(block) if line.startswith("intaglio")
]
SERVER, ADDRESS = "intaglio serve ", "http://127.0.0.1:8000"


def test_both_languages_show_the_same_code() -> None:
    for language in ("bash", "python"):
        ours, theirs = ([without_comments(block) for block in blocks(page, language)] for page in (ENGLISH, CHINESE))
        assert ours == theirs
        assert ours


def test_both_languages_show_the_same_figures() -> None:
    """Numbers in prose and tables; a ratio that is corrected in one page only is found here."""
    prose = [re.sub(r"```.*?```", "", page, flags=re.DOTALL) for page in (ENGLISH, CHINESE)]
    found = [sorted(set(re.findall(r"\d+(?:\.\d+)?(?: ?x| ?%|×)", page))) for page in prose]
    assert found[0] == found[1]


def test_the_numbers_are_those_of_the_code() -> None:
    assert f"{len(presets())} presets of {len(generations())} generations" in ENGLISH
    assert f"{len(generations())} 代共 {len(presets())} 个预设" in CHINESE
    architectures = {**FAMILIES, **ENCODER_DECODERS}
    assert f"Hugging Face directories of {len(architectures)} architectures" in ENGLISH
    assert f"{len(architectures)} 种架构" in CHINESE
    for page in (ENGLISH, CHINESE):
        assert set(architectures) <= set(re.findall(r"`([\w-]+)`", page))


@pytest.mark.real
@pytest.mark.parametrize("command", [command for command in COMMANDS if not command.startswith(SERVER)])
def test_a_command_runs(
    command: str,
    folder: Path,
    smollm2_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = Reader(monkeypatch, capsys, whole=True).type(command, "README.md")
    assert out or command.startswith("intaglio chat")


@pytest.mark.real
@pytest.mark.parametrize("block", blocks(ENGLISH, "python"))
def test_the_python_runs(block: str, folder: Path, smollm2_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = [command for command in COMMANDS if command.startswith(SERVER)]
    serving = served(*shlex.split(command.removeprefix(SERVER))) if ADDRESS in block else nullcontext(ADDRESS)
    with serving as address:
        exec(compile(block.replace(ADDRESS, address), "README.md", "exec"), {})
    out = capsys.readouterr().out
    if "my-llama" in block:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder / "my-llama")
        assert model.config.model_type == "llama"
        assert out.split()[0] == str(model.num_parameters())
    else:
        assert "Paris" in out
