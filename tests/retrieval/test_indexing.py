"""A folder becomes an index: what changed is read again, what is gone is forgotten, what was done is kept."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from intaglio.errors import UserError
from intaglio.retrieval import indexing
from intaglio.retrieval.index import Index
from intaglio.retrieval.indexing import Report, index_folder
from toy_embedder import ToyEmbedder


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.md").write_text("# A\nalpha")
    (folder / "sub" / "b.txt").write_text("beta")
    return folder


def run(docs: Path, embedder: ToyEmbedder | None = None) -> Report:
    return index_folder(docs, docs.parent / "index", embedder or ToyEmbedder())


def texts(docs: Path) -> dict[str, str]:
    with Index.open(docs.parent / "index") as index:
        return {chunk.file: chunk.text for chunk in index.chunks()}


def test_only_what_changed_is_embedded_again(docs: Path) -> None:
    assert run(docs).indexed == 2
    embedder = ToyEmbedder()
    (docs / "a.md").write_text("# A\nanother")
    report = run(docs, embedder)
    assert (report.indexed, report.unchanged, embedder.texts) == (1, 1, ["A\nA\nanother"])
    assert texts(docs) == {"a.md": "A\nanother", "sub/b.txt": "beta"}


def test_a_new_time_alone_is_no_change(docs: Path) -> None:
    run(docs)
    os.utime(docs / "a.md", (1, 1))
    report = run(docs, embedder := ToyEmbedder())
    assert (report.indexed, report.unchanged, embedder.texts) == (0, 2, [])
    with Index.open(docs.parent / "index") as index:
        assert index.files()["a.md"].mtime_ns == 1_000_000_000


def test_what_is_gone_is_forgotten(docs: Path) -> None:
    run(docs)
    (docs / "a.md").unlink()
    assert run(docs).removed == 1
    assert texts(docs) == {"sub/b.txt": "beta"}


def test_a_file_that_can_no_longer_be_read_is_forgotten(docs: Path) -> None:
    run(docs)
    (docs / "a.md").write_bytes(b"\0\0")
    report = run(docs)
    assert (report.removed, [one.file for one in report.left_out]) == (1, ["a.md"])
    assert texts(docs) == {"sub/b.txt": "beta"}


class Killed(ToyEmbedder):
    """Dies when it is to embed for the third time."""

    calls = 0

    def embed(self, texts: Sequence[str], *, query: bool) -> np.ndarray:
        self.calls += 1
        if self.calls == 3:
            raise KeyboardInterrupt
        return super().embed(texts, query=query)


def test_a_run_that_was_stopped_goes_on(docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "TOGETHER", 1)
    for i in range(4):
        (docs / f"c{i}.txt").write_text(f"gamma {i}")
    with pytest.raises(KeyboardInterrupt):
        run(docs, Killed())
    assert texts(docs) == {"a.md": "A\nalpha", "c0.txt": "gamma 0"}
    report = run(docs)
    assert (report.unchanged, report.indexed, report.chunks) == (2, 4, 6)


def test_what_cannot_be_indexed_is_said_and_the_rest_is(docs: Path) -> None:
    (docs / "broken.pdf").write_bytes(b"%PDF-1.7 oh")
    (docs / "binary.txt").write_bytes(b"\0\1\2")
    (docs / "latin.txt").write_bytes(b"caf\xe9")
    (docs / "photo.png").write_bytes(b"png")
    (docs / "loop").symlink_to(docs)
    (docs / "self.txt").symlink_to(docs / "self.txt")
    (docs / "twin.md").symlink_to(docs / "a.md")
    with (docs / "huge.txt").open("wb") as file:
        file.truncate(100_000_000)
    (docs / "empty.txt").write_text("")
    (docs / ".hidden.txt").write_text("no")
    report = run(docs)
    reasons = {one.file: one.reason for one in report.left_out}
    assert sorted(reasons) == [
        "binary.txt", "broken.pdf", "huge.txt", "latin.txt", "loop", "photo.png", "self.txt", "twin.md"
    ]  # fmt: skip
    assert "a broken PDF" in reasons["broken.pdf"]
    assert reasons["huge.txt"] == "100 MB, more than 32 MB"
    assert "link to a folder" in reasons["loop"]
    assert "Too many levels" in reasons["self.txt"]
    assert reasons["twin.md"] == "a link to a.md"
    assert [one.file for one in report.left_out if one.other_kind] == ["photo.png"]
    assert texts(docs) == {"a.md": "A\nalpha", "sub/b.txt": "beta"}


def test_a_folder_with_nothing_to_read(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    with pytest.raises(UserError, match="the folder is empty"):
        run(tmp_path / "docs")
    (tmp_path / "docs" / "a.png").write_bytes(b"png")
    with pytest.raises(UserError, match=r"left out: a\.png, of another kind"):
        run(tmp_path / "docs")
    with pytest.raises(UserError, match="no such folder"):
        run(tmp_path / "nowhere")
    assert not (tmp_path / "index").exists()


def test_progress_is_in_bytes(docs: Path) -> None:
    seen: list[tuple[int, int]] = []
    index_folder(docs, docs.parent / "index", ToyEmbedder(), watch=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 13), (9, 13), (13, 13)]
