"""Programs of another environment: found where they are said to be, quoted where they fail, never mixed up."""

import os
from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.bridges.outside import PYTHON, OutsideError, begin, find_program, run_program, version_of


def program(path: Path, source: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{source}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is on the PATH, and our environment stands where no other does."""
    monkeypatch.delenv(PYTHON, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    return tmp_path


def test_it_is_looked_for_in_order(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"--with lm-eval: lm_eval is not installed; run `make eval-env`"):
        find_program("lm_eval")
    for folder in ("path", ".venv-eval/bin", ".venv/bin"):  # each before the one before
        there = program(elsewhere / folder / "lm_eval", "")
        assert find_program("lm_eval") == there
    of_environment = program(elsewhere / "e" / "lm_eval", "")
    monkeypatch.setenv(PYTHON, str(elsewhere / "e" / "python"))
    assert find_program("lm_eval") == of_environment
    stated = program(elsewhere / "s" / "lm_eval", "")
    assert find_program("lm_eval", elsewhere / "s" / "python") == stated
    with pytest.raises(UserError, match=r"t/python: lm_eval is not installed"):
        find_program("lm_eval", elsewhere / "t" / "python")


def test_it_runs_offline_in_its_folder_and_its_words_are_kept(tmp_path: Path) -> None:
    told = program(tmp_path / "told", 'echo "$HF_HUB_OFFLINE $SECRET $1"; pwd; [ -z "$2" ] || exit "$2"')
    run_program([str(told), "a"], tmp_path / "folder", {"SECRET": "s"})
    assert (tmp_path / "folder" / "log.txt").read_text() == f"1 s a\n{tmp_path / 'folder'}\n"
    with pytest.raises(OutsideError, match=r"^told ended with status 4: .*folder \(.*log\.txt has all it said\)$"):
        run_program([str(told), "a", "4"], tmp_path / "folder", {})


def test_it_finds_its_own_python_beside_it(tmp_path: Path) -> None:
    program(tmp_path / "python", "echo 1.2.3")
    assert version_of(program(tmp_path / "lm_eval", ""), "lm_eval") == "1.2.3"
    program(tmp_path / "python", "exit 1")
    assert version_of(tmp_path / "lm_eval", "lm_eval") == "?"


def test_answers_are_kept_only_while_the_same_is_asked(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def answer() -> None:
        (folder / "answers").write_text("kept")
        (folder / "tasks").mkdir(exist_ok=True)

    begin(folder, {"rows": ["a", Path("b")]}, keep="answers")
    assert os.listdir(folder) == ["asked"]
    answer()
    begin(folder, {"rows": ["a", Path("b")]}, keep="answers")
    assert sorted(os.listdir(folder)) == ["answers", "asked"]
    answer()
    begin(folder, {"rows": ["a", Path("c")]}, keep="answers")
    assert os.listdir(folder) == ["asked"]
