"""`intaglio eval` on a tiny model here and behind a URL: what it prints, where results lie, what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from intaglio.engine.llm import LLM
from intaglio.evaluation.journal import Journal
from intaglio.evaluation.subjects.local import local_subject
from intaglio.evaluation.subjects.subject import Likelihood
from running import Run
from scripted_completions import scripted_completions
from seam_doors import make_adapter
from toy_llms import ANSWER

CHOICES = [
    {"question": "who says hello", "choices": ["the user", "the assistant says hi"], "answer": 0, "category": "who"},
    {"question": "who says hi", "choices": ["the user", "the assistant"], "answer": 1, "category": "who"},
    {"question": "the answer", "choices": ["42", "hello", "thanks"], "answer": 0, "category": "what"},
    {"question": "broken", "choices": ["42"], "answer": 0},
]


@pytest.fixture
def choices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three good rows and a bad one, in a folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "choices.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in CHOICES))
    return file


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """Free answers."""
    file = tmp_path / "words.jsonl"
    rows = [{"messages": [{"role": "user", "content": f"say {n}"}], "answer": ANSWER} for n in range(3)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def told(run: Run, *arguments: object) -> dict[str, Any]:
    """What is printed as JSON."""
    ran = run("eval", *arguments, "--json")
    assert ran.status == 0, ran
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_likelihoods_of_a_directory(run: Run, toy_dir: Path, choices: Path) -> None:
    found = told(run, toy_dir, "--tasks", choices, "--failures", 9)
    task = found["tasks"]["choices"]
    assert set(found) == {"format", "model", "settings", "versions", "tasks", "path", "failures"}
    assert found["model"]["name"] == toy_dir.name
    assert set(found["model"]) >= {"model_hash", "template_hash", "dtype", "device"}
    assert set(found["versions"]) >= {"python", "torch", "intaglio"}
    assert (task["kind"], task["items"], set(task["metrics"])) == ("choice", 3, {"acc", "acc_norm", "acc_bytes"})
    assert set(task["categories"]) == {"who", "what"}
    assert task["bad_rows"] == [{"where": f"{choices}:4", "why": "'choices' has fewer than two texts"}]
    folder = Path(found["path"])
    assert folder.parent == Path("runs")
    lines = [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]
    subject = local_subject(LLM(toy_dir), toy_dir)
    pairs = [("Question: who says hello\nAnswer:", f" {choice}") for choice in ("the user", "the assistant says hi")]
    expected = [one.nats for one in subject.likelihoods(pairs) if isinstance(one, Likelihood)]
    assert lines[0]["nats"] == pytest.approx(expected, abs=1e-3)
    wrong = [line for line in lines if line["scores"]["acc"] < 1]
    assert found["failures"]["choices"] == wrong
    right = 3 - len(wrong)
    assert task["metrics"]["acc"]["mean"] == pytest.approx(right / 3)


def test_a_run_that_is_done_is_shown_again(run: Run, toy_dir: Path, choices: Path) -> None:
    first = run("eval", toy_dir, "--tasks", choices, "--failures", 3)
    assert first.status == 0
    assert "choices: a bad row was left out, and counts nowhere" in first.err
    assert f"{choices}:4: 'choices' has fewer than two texts" in first.err
    for words in ("acc_norm", "95 %", "who", "what", "results: runs/eval-toy-"):
        assert words in first.out
    again = run("eval", toy_dir, "--tasks", choices, "--failures", 3)
    assert again.out == first.out
    assert "holds results already" in again.err


def test_shots_make_a_table_of_curves(run: Run, toy_dir: Path, choices: Path, tmp_path: Path) -> None:
    ran = run("eval", toy_dir, "--tasks", choices, "--shots", "0,1,2", "--limit", 2, "--out", tmp_path / "out")
    assert ran.status == 0, ran
    assert "0 shots" in ran.out
    assert "1 shot " in ran.out
    found = told(run, toy_dir, "--tasks", choices, "--shots", "0,1,2", "--limit", 2, "--out", tmp_path / "out")
    assert list(found["tasks"]) == ["choices@0", "choices@1", "choices@2"]


def test_letters_and_written_letters(run: Run, toy_dir: Path, parrot_dir: Path, choices: Path, tmp_path: Path) -> None:
    letters = told(run, toy_dir, "--tasks", choices, "--scoring", "letter", "--out", tmp_path / "a")
    assert set(letters["tasks"]["choices"]["metrics"]) == {"acc"}
    asked = ("--scoring", "generate", "--chat", "--max-tokens", 20, "--failures", 1)
    written = told(run, parrot_dir, "--tasks", choices, *asked, "--out", tmp_path / "b")
    task = written["tasks"]["choices"]
    assert task["kind"] == "generation"
    assert (task["metrics"]["acc"]["mean"], task["metrics"]["valid"]["mean"]) == (0, 0)
    assert written["failures"]["choices"][0]["text"] == ANSWER


def test_written_answers(run: Run, parrot_dir: Path, words: Path, tmp_path: Path) -> None:
    found = told(run, parrot_dir, "--tasks", words, "--out", tmp_path / "out", "--metrics", "exact_match,rougeL")
    assert {name: one["mean"] for name, one in found["tasks"]["words"]["metrics"].items()} == {
        "exact_match": 1.0,
        "rougeL": 1.0,
    }


def test_an_adapter_merged_or_beside(run: Run, toy_dir: Path, choices: Path, tmp_path: Path) -> None:
    adapter = make_adapter(toy_dir, tmp_path / "adapter", 1)
    nats = []
    for place, options in enumerate(([], ["--adapter", adapter], ["--adapter", adapter, "--beside"])):
        out = tmp_path / f"out{place}"
        found = told(run, toy_dir, "--tasks", choices, "--dtype", "float32", "--out", out, *options)
        nats.append(json.loads((out / "items.jsonl").read_text().splitlines()[0])["nats"])
    assert found["model"]["merged"] is False
    assert found["model"]["adapter_hash"]
    assert nats[1] == pytest.approx(nats[2], abs=1e-3)
    assert nats[0] != pytest.approx(nats[1], abs=0.01)


def test_a_server_says_what_the_model_says(run: Run, toy_dir: Path, choices: Path, tmp_path: Path) -> None:
    here = told(run, toy_dir, "--tasks", choices, "--dtype", "float32", "--out", tmp_path / "here")
    with scripted_completions(local_subject(LLM(toy_dir, dtype="float32"), toy_dir)) as server:
        there = told(run, server.url, "--tasks", choices, "--out", tmp_path / "there")
    assert there["tasks"] == here["tasks"]
    assert there["model"]["url"] == server.url


def test_what_was_answered_before_an_interruption_is_kept(
    run: Run, toy_dir: Path, choices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    asked = ("eval", toy_dir, "--tasks", choices, "--batch-size", 1, "--out", tmp_path / "out")
    with monkeypatch.context() as patch:
        add = Journal.add
        patch.setattr(Journal, "add", lambda self, entry: interrupted() if len(self.entries) == 2 else add(self, entry))
        ran = run(*asked)
    assert ran.status == 130
    assert f"what was answered is kept in {tmp_path / 'out'}" in ran.err
    assert len((tmp_path / "out/journal.jsonl").read_text().splitlines()) == 1 + 2
    assert run(*asked).status == 0
    assert not (tmp_path / "out/journal.jsonl").exists()


def test_programs_need_leave(run: Run, toy_dir: Path, tmp_path: Path) -> None:
    row = {"task_id": "t/0", "prompt": "def one():\n", "entry_point": "one", "test": "def check(f): assert f() == 1"}
    (tmp_path / "he.jsonl").write_text(json.dumps(row))
    ran = run("eval", toy_dir, "--tasks", f"humaneval:{tmp_path / 'he.jsonl'}", "--out", tmp_path / "out")
    assert "its answers are programs, which are run; give --allow-code" in ran.refusal


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "--tasks: no task is named"),
        (["--tasks", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["--tasks", "FILE", "--shots", "1,x"], "--shots: '1,x' is no list of numbers"),
        (["--tasks", "FILE", "--shots", "7"], "choices: 7 shots, and there are 2 examples"),
        (["--tasks", "FILE", "--served", "x"], "--served: has no effect on a model that is loaded here"),
        (["--tasks", "FILE", "--beside"], "--beside: there is no adapter"),
        (["--tasks", "FILE", "--list-choices"], "only BIG-bench tasks can list their choices"),
        (["--tasks", "FILE", "--metrics", "f1"], "--metrics: has no effect on any of these tasks"),
        (["--tasks", "FILE", "--allow-code"], "--allow-code: has no effect on tasks without programs"),
        (["--tasks", "FILE", "--temperature", "1"], "--temperature: has no effect"),
        (["--tasks", "FILE", "--samples", "2", "--temperature", "1", "--scoring", "generate"], "--samples: has no"),
        (["--tasks", "FILE", "--judge", "http://x"], "--judge: has no effect without --against"),
        (["--tasks", "FILE", "--stride", "3"], "--stride: has no effect without --files"),
        (["--files", "FILE", "--tasks", "FILE"], "--tasks: has no effect with --files"),
        (["other", "--tasks", "FILE"], "other: one model at a time"),
    ],
)
def test_what_is_refused(run: Run, toy_dir: Path, choices: Path, options: list[str], why: str) -> None:
    asked = [str(choices) if option == "FILE" else option for option in options]
    assert why in run("eval", toy_dir, *asked).refusal
    assert not Path("runs").exists()
