"""What the README says is run: its commands, its Python, its numbers and its picture; in both languages."""

import io
import re
import shlex
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from intaglio.cli.main import main
from intaglio.lineage.presets import generations, presets
from intaglio.serving.beside import served
from intaglio.specs.families import ENCODER_DECODERS, FAMILIES

ROOT = Path(__file__).parents[1]
ENGLISH = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh-CN.md").read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def without_comments(block: str) -> list[str]:
    return [re.sub(r"\s+#.*", "", line) for line in block.splitlines()]


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


def test_the_picture_is_drawn_from_the_presets_as_they_are() -> None:
    subprocess.run([sys.executable, str(ROOT / "scripts" / "draw_family_tree.py"), "--check"], check=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder that holds what the README's placeholders stand for."""
    from toy_gguf import write_llama

    write_llama(tmp_path / "model.gguf")
    (tmp_path / "FOLDER").mkdir()
    for i in range(40):
        (tmp_path / "FOLDER" / f"{i}.txt").write_text(f"the sea, the sea, the open sea {i}\n" * 20, encoding="utf-8")
    row = '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}\n'
    (tmp_path / "rows.jsonl").write_text(row, encoding="utf-8")
    asked = '{"question": "Is the sea wet?", "choices": ["yes", "no"], "answer": "yes"}\n'
    (tmp_path / "questions.jsonl").write_text(asked, encoding="utf-8")
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.real
@pytest.mark.parametrize("command", [command for command in COMMANDS if not command.startswith(SERVER)])
def test_a_command_runs(
    command: str,
    folder: Path,
    smollm2_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    monkeypatch.setattr(sys, "stdin", io.StringIO("/exit\n"))
    with pytest.raises(SystemExit) as end:
        main()
    captured = capsys.readouterr()
    assert not end.value.code, captured.err
    assert captured.out or command.startswith("intaglio chat")


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
