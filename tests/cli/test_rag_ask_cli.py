"""`intaglio rag search`, `ask`, `eval` and `questions`, and what `serve --rag` comes to."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from intaglio.cli import rag_ask
from intaglio.retrieval import embedder
from intaglio.retrieval.prompt import NOT_FOUND
from running import Run
from scripted_answerer import Scripted
from toy_documents import ToyEmbedder, toy_searcher

FERRY = "When does the ferry to the island leave?"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An index of toy documents, and the embedder that it names."""
    monkeypatch.setattr(embedder, "load_embedder", lambda name: {"toy": ToyEmbedder()}[name])
    with toy_searcher(tmp_path) as searcher:
        yield searcher.index.path


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """What answers in place of a real model."""
    scripted = Scripted("At nine", " [1].")
    monkeypatch.setattr(rag_ask, "_answerer", lambda *names: scripted)
    return scripted


def test_search(run: Run, index: Path) -> None:
    assert run("rag", "search", index, FERRY, "-k", 2).out.startswith("1. boats.md:1-1  Boats  (dense 1, sparse 1)\n")
    found = json.loads(run("rag", "search", index, FERRY, "-k", 2, "--no-dense", "--json").out)
    assert (found["hits"][0]["file"], found["hits"][0]["line"]) == ("boats.md", 1)
    assert found["hits"][0]["ranks"] == {"sparse": 1}


def test_a_model_orders_anew(run: Run, index: Path, model: Scripted) -> None:
    found = json.loads(run("rag", "search", index, "ferry vet", "-k", 1, "--rerank", "llm", "--json").out)
    assert found["hits"][0]["file"] == "dogs.md"


def test_ask(run: Run, index: Path, model: Scripted) -> None:
    assert run("rag", "ask", index, FERRY).out == "At nine [1].\n[1] boats.md:1-1  Boats (verified)\n"
    found = json.loads(run("rag", "ask", index, FERRY, "--budget", 900, "--json").out)
    assert (found["answer"], found["found"], found["citations"][0]["file"]) == ("At nine [1].", True, "boats.md")
    assert found["prompt_tokens"] == model.count(model.asked[-1]) <= 900
    assert run("rag", "ask", index, "Who painted the Mona Lisa?").out == f"{NOT_FOUND}\n"


def test_evaluation(run: Run, index: Path, model: Scripted, tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    rows: list[Any] = [{"question": FERRY, "files": ["boats.md"], "answers": ["at nine"]}]
    rows += [{"question": "When does the vet come?", "files": ["rooms.md"]}]
    file.write_text("\n".join(map(json.dumps, rows)))
    found = json.loads(run("rag", "eval", index, file, "-k", 1, "--answers", "--json").out)
    assert (found["recall"], found["answered"]["contains"]) == (0.5, 1.0)
    shown = run("rag", "eval", index, file, "-k", 1).out
    assert "not found: When does the vet come?" in shown


def test_questions_from_an_index(run: Run, tmp_path: Path) -> None:
    page, out = tmp_path / "genindex-all.html", tmp_path / "q.jsonl"
    page.write_text('<ul class="indextable"><li><a href="a.html#x">x()</a></li></ul>')
    assert run("rag", "questions", page, "--count", 1, "--out", out).status == 0
    assert json.loads(out.read_text()) == {"question": "What is x()?", "files": ["a.html"]}


def test_mistakes_are_one_line(run: Run, index: Path, tmp_path: Path) -> None:
    assert "there is no index" in run("rag", "search", tmp_path / "none", "x").refusal
    assert "--api-key: is for a server" in run("rag", "ask", index, FERRY, "--api-key", "k").refusal
    assert "--model: no model is asked" in run("rag", "search", index, FERRY, "--model", "m").refusal
    assert "the question is empty" in run("rag", "search", index, " ").refusal
