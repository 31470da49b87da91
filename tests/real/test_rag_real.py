"""Python's documentation indexed, stopped and gone on with, and searched: what `docs/rag.md` promises.

Some ten minutes on two cores. The documentation and its index are kept in `INTAGLIO_RUNS`, where that is set.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from intaglio.retrieval.chunks import chunks_of
from intaglio.retrieval.embedder import DEFAULT_EMBEDDER, load_embedder
from intaglio.retrieval.evaluate import evaluate_search
from intaglio.retrieval.index import Index
from intaglio.retrieval.indexing import Report, index_folder
from intaglio.retrieval.questions import index_questions, read_questions
from intaglio.retrieval.reading.files import Document, documents, read_blocks
from intaglio.retrieval.search import Searcher
from shared_cache import shared_home

pytestmark = [pytest.mark.prove, pytest.mark.real]

ROOT = Path(__file__).parents[2]
INDEX = (sys.executable, "-m", "intaglio.cli.main", "rag", "index")
QUESTIONS = ROOT / "benchmarks" / "rag"
TOKENS = 200
STOPS = {signal.SIGKILL: 100, signal.SIGINT: 250}
"""How a run is stopped, and at how many files of some five hundred."""


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python's documentation."""
    kept = os.environ.get("INTAGLIO_RUNS")
    folder = (Path(kept) if kept else tmp_path_factory.mktemp("rag")) / "python-docs"
    if not folder.exists():
        subprocess.run([sys.executable, ROOT / "scripts" / "python_docs.py", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def built(docs: Path) -> dict[str, Any]:
    """Its index, made in three runs, of which two were stopped; and what each stop had left and the last run said."""
    path = docs.with_name("python-docs-index")
    story = docs.with_name("python-docs-index.json")
    if not story.exists():
        stops = {how.name: _stopped(docs / "pages", path, how, files) for how, files in STOPS.items()}
        ended = subprocess.run(_command(docs / "pages", path), env=_environment(), check=True, stdout=subprocess.PIPE)
        story.write_text(json.dumps({"stops": stops, "last": json.loads(ended.stdout), "now": _left(path)}))
    return json.loads(story.read_text()) | {"path": path}


@pytest.fixture
def searcher(built: dict[str, Any], home: Path) -> Iterator[Searcher]:
    with Searcher.open(built["path"]) as opened:
        yield opened


def _command(pages: Path, path: Path) -> list[str]:
    return [*INDEX, str(pages), "--out", str(path), "--chunk-tokens", str(TOKENS), "--json"]


def _environment() -> dict[str, str]:
    return os.environ | {"INTAGLIO_HOME": str(shared_home())}


def _stopped(pages: Path, path: Path, how: signal.Signals, files: int) -> dict[str, Any]:
    """What a run left that was stopped as soon as so many files were in the index."""
    run = subprocess.Popen(_command(pages, path), env=_environment(), stdout=subprocess.DEVNULL)
    while run.poll() is None and len(_left(path)["files"]) < files:
        time.sleep(1)
    run.send_signal(how)
    return {"status": run.wait(), **_left(path)}


def _left(path: Path) -> dict[str, list[str]]:
    """The files in the index, and the passages in the order in which they came: a file done again would be the last."""
    if not (path / "index.sqlite").exists():
        return {"files": [], "passages": []}
    with Index.open(path) as index:
        return {"files": list(index.files()), "passages": [chunk.id for chunk in index.chunks()]}


def test_what_was_done_before_a_stop_is_not_done_again(built: dict[str, Any]) -> None:
    killed, interrupted = (built["stops"][how.name] for how in STOPS)
    assert (killed["status"], interrupted["status"]) == (-signal.SIGKILL, 130)
    done, files, passages = (len(one) for one in (interrupted["files"], built["now"]["files"], interrupted["passages"]))
    assert STOPS[signal.SIGKILL] <= len(killed["files"]) < done < files
    last = built["last"]
    assert (last["unchanged"], last["indexed"], last["embedded"]) == (done, files - done, last["chunks"] - passages)
    assert interrupted["passages"][: len(killed["passages"])] == killed["passages"]
    assert built["now"]["passages"][:passages] == interrupted["passages"]


def test_the_index_is_the_one_of_a_run_that_nobody_stopped(built: dict[str, Any], docs: Path, home: Path) -> None:
    found = [one for one in documents(docs / "pages", 1 << 30) if isinstance(one, Document)]
    wanted = {chunk.id: chunk for one in found for chunk in _chunks(one)}
    with Index.open(built["path"]) as index:
        chunks, vectors = index.chunks(), index.vectors()
    assert len(chunks) >= 5000
    assert {chunk.id: chunk for chunk in chunks} == wanted
    some = np.random.default_rng(0).choice(len(chunks), 256, replace=False)
    again = load_embedder(DEFAULT_EMBEDDER).embed([chunks[i].passage for i in some], query=False)
    assert (again * vectors[some]).sum(axis=1).min() > 0.999  # bf16 rounds by what lies in the same batch


def _chunks(document: Document) -> list[Any]:
    return list(chunks_of(document.file, read_blocks(document.path, document.path.read_bytes()), TOKENS))


def test_what_changes_is_followed_and_nothing_else_is_done(built: dict[str, Any], docs: Path, home: Path) -> None:
    assert _work(_again(docs, built)) == (0, len(built["now"]["files"]), 0)
    changed, gone = docs / "pages" / "library" / "shlex.html", docs / "pages" / "library" / "secrets.html"
    before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in (changed, gone)}
    try:
        changed.write_bytes(before[changed][0].replace(b"</h1>", b"</h1><p>Quokkas parse command lines.</p>", 1))
        gone.unlink()
        assert _work(_again(docs, built)) == (1, len(built["now"]["files"]) - 2, 1)
        with Searcher.open(built["path"]) as searcher:
            assert searcher.search("quokkas", 1, dense=False)[0].chunk.file == "library/shlex.html"
            files = {chunk.file for chunk in searcher.index.chunks()}
        assert "library/secrets.html" not in files
    finally:
        for file, (content, written) in before.items():
            file.write_bytes(content)
            os.utime(file, ns=(written, written))
        _again(docs, built)
    assert set(_left(built["path"])["passages"]) == set(built["now"]["passages"])


def _again(docs: Path, built: dict[str, Any]) -> Report:
    return index_folder(docs / "pages", built["path"], load_embedder(DEFAULT_EMBEDDER), chunk_tokens=TOKENS)


def _work(report: Report) -> tuple[int, int, int]:
    return report.indexed, report.unchanged, report.removed


def test_the_right_page_is_found(docs: Path, searcher: Searcher) -> None:
    made = index_questions(docs / "genindex-all.html", 200)
    entries = evaluate_search(searcher, made)
    written = evaluate_search(searcher, read_questions(QUESTIONS / "python-docs.jsonl"))
    strangers = evaluate_search(searcher, read_questions(QUESTIONS / "not-in-python-docs.jsonl"))
    print(entries, written, strangers, sep="\n")
    assert entries["recall"] >= 0.85
    assert written["recall"] >= 0.90
    assert entries["refused"] <= 0.10
    assert written["refused"] <= 0.10
    assert strangers["strangers_refused"] >= 0.75


def test_a_file_of_a_hundred_megabytes_is_told_and_the_rest_indexed(tmp_path: Path, home: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.txt").write_text("The ferry leaves at nine.")
    (tmp_path / "docs" / "huge.txt").write_bytes(b"A line of text that is like all others.\n" * 2_500_000)
    report = index_folder(tmp_path / "docs", tmp_path / "index", load_embedder(DEFAULT_EMBEDDER))
    assert [(one.file, one.reason) for one in report.left_out] == [("huge.txt", "100 MB, more than 32 MB")]
    with closing(Index.open(tmp_path / "index")) as index:
        assert list(index.files()) == ["a.txt"]
