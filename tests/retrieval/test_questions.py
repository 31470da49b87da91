"""Questions whose pages are known, and the figures that they give."""

import json
from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.retrieval.answer import Grounding
from intaglio.retrieval.evaluate import evaluate_answers, evaluate_search
from intaglio.retrieval.measures import first_rank, support
from intaglio.retrieval.questions import Question, index_questions, read_questions
from scripted_answerer import Scripted
from toy_documents import toy_searcher

SPHINX = """
<table class="indextable"><tr><td><ul>
  <li><a href="library/os.html#os.abort">abort() (in module os)</a>
    <ul>
      <li><a href="library/asyncio-sync.html#abort">(asyncio.Barrier method)</a></li>
    </ul></li>
  <li>abstract
    <ul><li><a href="glossary.html#base">base class</a>, <a href="library/abc.html#x">[1]</a></li></ul></li>
</ul></td></tr></table>
<ul><li><a href="index.html">no entry</a></li></ul>
"""


def test_an_index_becomes_questions(tmp_path: Path) -> None:
    page = tmp_path / "genindex-all.html"
    page.write_text(SPHINX)
    found = index_questions(page, 3)
    assert {question.question: question.files for question in found} == {
        "What is abort() (in module os)?": ("library/os.html",),
        "What is abort() (asyncio.Barrier method)?": ("library/asyncio-sync.html",),
        "What is abstract base class?": ("glossary.html", "library/abc.html"),
    }
    assert index_questions(page, 2) == index_questions(page, 2)
    with pytest.raises(UserError, match="3 entries are fewer than 4"):
        index_questions(page, 4)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "q.jsonl:2: no JSON object with"),
        ('{"question": "a"}', "q.jsonl:2: no JSON object with"),
        ("[]", "q.jsonl:2: no JSON object with"),
        ('{"question": "", "files": []}', "q.jsonl:2: `question` is a text"),
        ('{"question": "a", "files": "b"}', "q.jsonl:2: `question` is a text"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"question": "a", "files": ["b"], "answers": ["c"]}\n')
    assert read_questions(file) == [Question("a", ("b",), ("c",))]
    file.write_text(file.read_text() + line)
    with pytest.raises(UserError, match=r"q\.jsonl:2") as caught:
        read_questions(file)
    assert complaint in str(caught.value)


def test_measures() -> None:
    assert first_rank(["a", "b", "b"], {"b"}) == 2
    assert first_rank(["a"], {"b"}) is None
    assert support("The ferry leaves at noon", ["a ferry leaves at nine"]) == pytest.approx(2 / 3)
    assert support("", ["x"]) == 0


QUESTIONS = [
    Question("When does the ferry leave for the island?", ("boats.md",), ("at nine", "nine")),
    Question("Where do the dogs sleep?", ("dogs.md", "rooms.md"), ("in the kennel",)),
    Question("When does the vet come?", ("rooms.md",)),  # wrong on purpose
    Question("Which capital has the Eiffel Tower?", ()),
]


def test_searches_are_judged(tmp_path: Path) -> None:
    found = evaluate_search(toy_searcher(tmp_path), QUESTIONS, 1)
    assert (found["questions"], found["k"], found["recall"], found["mrr"]) == (4, 1, pytest.approx(2 / 3), 2 / 3)
    assert found["recall_low"] <= found["recall"] <= found["recall_high"]
    assert (found["refused"], found["strangers_refused"]) == (0, 1)
    assert found["misses"] == ["When does the vet come?"]
    assert found["latency_s"]["p95"] > 0
    json.dumps(found)


def test_one_way_alone_has_no_threshold(tmp_path: Path) -> None:
    found = evaluate_search(toy_searcher(tmp_path), QUESTIONS, 5, dense=False)
    assert found["recall"] == pytest.approx(2 / 3)
    assert "threshold" not in found


def test_answers_are_judged(tmp_path: Path) -> None:
    grounding = Grounding(toy_searcher(tmp_path), 2000)
    found = evaluate_answers(grounding, QUESTIONS, Scripted("At nine."))
    assert found["answers"] == ["At nine."] * 3 + ["This is not in the documents."]
    assert (found["exact_match"], found["f1"], found["contains"], found["not_found"]) == (0.5, 0.5, 0.5, 0.25)
    assert found["cited"] == pytest.approx(1 / 3)
    assert found["faithfulness"] == pytest.approx(1 / 3)
    json.dumps(found)
