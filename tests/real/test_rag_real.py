"""Retrieval on Python's documentation, as `docs/rag.md` has it: the right page among the first five passages.

The documentation and its index are kept in `INTAGLIO_RUNS`, where that is set.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from intaglio.retrieval.embedder import DEFAULT_EMBEDDER, load_embedder
from intaglio.retrieval.evaluate import evaluate_search
from intaglio.retrieval.indexing import index_folder
from intaglio.retrieval.questions import index_questions, read_questions
from intaglio.retrieval.search import Searcher

pytestmark = [pytest.mark.prove, pytest.mark.real]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python's documentation."""
    kept = os.environ.get("INTAGLIO_RUNS")
    folder = (Path(kept) if kept else tmp_path_factory.mktemp("rag")) / "python-docs"
    if not folder.exists():
        subprocess.run([sys.executable, ROOT / "scripts" / "python_docs.py", folder], check=True)
    return folder


@pytest.fixture
def searcher(docs: Path, home: Path) -> Searcher:
    """Its index; what a run before has done of it is not done again."""
    path = docs.with_name("python-docs-index")
    assert index_folder(docs / "pages", path, load_embedder(DEFAULT_EMBEDDER)).chunks >= 5000
    return Searcher.open(path)


def test_the_right_page_is_found(docs: Path, searcher: Searcher) -> None:
    made = index_questions(docs / "genindex-all.html", 200)
    entries = evaluate_search(searcher, made)
    written = evaluate_search(searcher, read_questions(ROOT / "benchmarks" / "rag" / "python-docs.jsonl"))
    strangers = evaluate_search(searcher, read_questions(ROOT / "benchmarks" / "rag" / "not-in-python-docs.jsonl"))
    print(entries, written, strangers, sep="\n")
    assert entries["recall"] >= 0.85
    assert written["recall"] >= 0.90
    assert written["refused"] <= 0.10
    assert strangers["strangers_refused"] >= 0.75
