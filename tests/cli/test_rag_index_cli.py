"""`intaglio rag index`: what it prints, for people and for programs."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from intaglio.cli.main import app
from intaglio.retrieval import embedder
from toy_embedder import ToyEmbedder


@pytest.fixture
def docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(embedder, "load_embedder", lambda name, **_: ToyEmbedder())
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# A\nalpha")
    (folder / "b.png").write_bytes(b"png")
    (folder / "c.pdf").write_bytes(b"%PDF no")
    return folder


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["rag", "index", *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_for_people(docs: Path) -> None:
    lines = run(docs, "--out", docs.parent / "i").splitlines()
    assert lines[0].endswith("i: 1 passages; 1 files read, 0 unchanged")
    assert lines[1].startswith("1 passages embedded")
    assert lines[2] == "left out: 1 file of another kind (.png)"
    assert lines[3].startswith("left out: c.pdf: a broken PDF file")
    assert "1 unchanged" in run(docs, "--out", docs.parent / "i")


def test_for_programs(docs: Path) -> None:
    said: dict[str, Any] = json.loads(run(docs, "--out", docs.parent / "i", "--json"))
    assert (said["chunks"], said["indexed"], said["embedded"]) == (1, 1, 1)
    assert [one["file"] for one in said["left_out"]] == ["b.png", "c.pdf"]
    assert said["texts_per_second"] > 0
