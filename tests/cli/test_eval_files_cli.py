"""`intaglio eval MODEL --files`: perplexity and bits per byte of texts, gone on with and compared."""

import json
from pathlib import Path

import pytest

from intaglio.engine.llm import LLM
from intaglio.evaluation.perplexity import Document, Sliding, measure_perplexity
from intaglio.evaluation.subjects.local import local_subject
from running import Run

TEXTS = ["the quick brown fox", "hello there, how do you do", "the lazy dog"]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*TEXTS, ""]))
    return file


def test_texts_are_measured_and_the_results_are_there(run: Run, toy_dir: Path, rows: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXTS[0])
    arguments = ("eval", toy_dir, "--files", rows, "--files", tmp_path / "a.txt", "--window", 8, "--stride", 3)
    ran = run(*arguments, "--out", tmp_path / "out", "--json")
    assert ran.status == 0, ran.err
    told = json.loads(ran.out)
    documents = [Document(text, str(i)) for i, text in enumerate(TEXTS)]
    expected = measure_perplexity(local_subject(LLM(toy_dir), toy_dir), documents, Sliding(8, 3))
    found = told["tasks"]["rows.jsonl"]
    for metric in ("perplexity", "bits_per_byte"):
        interval = getattr(expected, metric)
        assert found["metrics"][metric] == pytest.approx({**interval._asdict(), "n": 3}, rel=1e-5)
    assert (found["kind"], found["items"], found["hash"]) == ("perplexity", 3, expected.hash)
    assert told["tasks"]["a.txt"]["items"] == 4 == len(_lines(tmp_path / "out" / "items.jsonl")) - 3
    assert {"window": 8, "stride": 3, "packed": False}.items() <= told["settings"].items()
    assert told["settings"]["units"] == {"rows.jsonl": "document", "a.txt": "window"}
    assert "rows.jsonl: 3 documents" in ran.err
    assert json.loads(run(*arguments, "--out", tmp_path / "out", "--json").out) == told


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def test_for_people(run: Run, toy_dir: Path, rows: Path, tmp_path: Path) -> None:
    ran = run("eval", toy_dir, "--files", rows, "--packed", "--limit", 2, "--out", tmp_path / "out")
    assert ran.status == 0, ran.err
    assert "bits_per_byte" in ran.out
    assert "perplexity" in ran.out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--window", "8", "--stride", "8"], "stride of 8 does not fit a window of 8"),
        (["--window", "257"], "--window: 257 tokens, and the model reads 256"),
        (["--tasks", "x"], "--tasks: has no effect with --files"),
        (["--files", "again"], "named twice"),
        (["--judge", "u"], "--judge: has no effect without --against"),
    ],
)
def test_mistakes(run: Run, toy_dir: Path, rows: Path, tmp_path: Path, more: list[str], message: str) -> None:
    more = [str(rows) if one == "again" else one for one in more]
    assert message in run("eval", toy_dir, "--files", rows, "--out", tmp_path / "out", *more).refusal


def test_what_holds_no_text_is_refused_and_results_of_tasks_stay(
    run: Run, toy_dir: Path, rows: Path, tmp_path: Path
) -> None:
    other = tmp_path / "chats.jsonl"
    other.write_text('{"messages": []}\n')
    assert "chats.jsonl:1: has no text" in run("eval", toy_dir, "--files", other).refusal
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "results.json").write_text("{}")
    assert "holds another evaluation" in run("eval", toy_dir, "--files", rows, "--out", folder).refusal
    assert (folder / "results.json").read_text() == "{}"
