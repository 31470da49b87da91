"""`intaglio eval A --against B`: by right answers, by a reward, by a judge."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from intaglio.checkpoints.classifiers import save_classifier
from intaglio.engine.llm import LLM
from intaglio.evaluation.subjects.local import local_subject
from intaglio.models.heads import SequenceClassifier, init_head
from intaglio.specs.families import read_directory
from running import Run
from toy_llms import ANSWER, random_model, toy_tokenizer

QUESTIONS = (("hello to the", ["assistant", "user"], "A"), ("the user says", ["hello", "thanks"], "B"))


@pytest.fixture
def task(tmp_path: Path) -> Path:
    file = tmp_path / "task.jsonl"
    rows = [{"id": f"q{i}", "question": q, "choices": c, "answer": a} for i, (q, c, a) in enumerate(QUESTIONS)]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": text, "most": 20}) + "\n" for text in ("hi", "ho", "he")))
    return file


def fought(run: Run, ours: Path, theirs: Path, out: Path, *more: object) -> Any:
    ran = run("eval", ours, "--against", theirs, "--out", out, "--json", *more)
    assert ran.status == 0, ran.err
    report = json.loads(ran.out)
    assert report == json.loads((out / "duel.json").read_text())
    assert report["format"] == "intaglio-duel/1"
    return report


def bouts(out: Path) -> list[Any]:
    return [json.loads(line) for line in (out / "bouts.jsonl").read_text().splitlines()[1:]]


def test_the_likelihood_of_right_answers_decides(
    run: Run, toy_dir: Path, parrot_dir: Path, task: Path, tmp_path: Path
) -> None:
    report = fought(run, toy_dir, parrot_dir, tmp_path / "out", "--tasks", task)
    subjects = [local_subject(LLM(path), path) for path in (toy_dir, parrot_dir)]
    for bout, (_, choices, answer) in zip(bouts(tmp_path / "out"), QUESTIONS, strict=True):
        assert bout["points"] == float(bout["marks"][0] > bout["marks"][1])
        assert choices["AB".index(answer)]
    assert report["referee"] == "the likelihood of right answers"
    assert report["wins"] + report["losses"] == report["items"] == 2
    assert [report[side]["model_hash"] for side in ("ours", "theirs")] == [
        subject.identity()["model_hash"] for subject in subjects
    ]
    back = fought(run, parrot_dir, toy_dir, tmp_path / "back", "--tasks", task)
    assert (back["wins"], back["losses"]) == (report["losses"], report["wins"])


def test_a_reward_decides_and_is_given_the_row(
    run: Run, toy_dir: Path, parrot_dir: Path, prompts: Path, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def short(completions, most):\n    return [n - len(t) for t, n in zip(completions, most)]\n")
    more = ("--prompts", prompts, "--chat", "--max-tokens", 20, "--reward", f"{file}:short")
    report = fought(run, parrot_dir, toy_dir, tmp_path / "out", *more)
    found = bouts(tmp_path / "out")
    assert [bout["ours"] for bout in found] == [ANSWER] * 3
    for bout in found:
        assert bout["marks"] == [20 - len(bout["ours"]), 20 - len(bout["theirs"])]
    assert report["items"] == 3
    model = SequenceClassifier(random_model(read_directory(toy_dir), seed=4), 1)
    init_head(model, 1)
    save_classifier(model, tmp_path / "reward", toy_tokenizer())
    how = ("--prompts", prompts, "--chat", "--max-tokens", 12, "--reward", tmp_path / "reward", "--limit", 2)
    report = fought(run, toy_dir, parrot_dir, tmp_path / "model", *how)
    assert report["items"] == 2
    assert all(bout["marks"][0] != bout["marks"][1] for bout in bouts(tmp_path / "model"))


def test_a_judge_is_asked_in_both_orders(
    run: Run, toy_dir: Path, parrot_dir: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class First:
        model = "judge-1"

        def __init__(self, url: str, model: str | None, api_key: str | None) -> None:
            assert (url, model) == ("http://there", "m")

        def first_words(self, messages: Sequence[Any]) -> dict[str, float]:
            asked.append(messages[0]["content"])
            return {"A": -0.1, "B": -3.0}

    monkeypatch.setattr("intaglio.retrieval.remote.UrlAnswerer", First)
    more = ("--prompts", prompts, "--chat", "--max-tokens", 4, "--judge", "http://there", "--judge-model", "m")
    report = fought(run, parrot_dir, toy_dir, tmp_path / "out", *more)
    assert (report["ties"], report["turned_by_order"], report["referee"]) == (3, 3, "the judge judge-1")
    assert len(asked) == 6
    ran = run("eval", parrot_dir, "--against", toy_dir, "--out", tmp_path / "out", *more)
    assert len(asked) == 6  # all was known
    assert "3 ties because the judge turned with the order" in ran.out
    assert "won 50.0% (50.0% to 50.0%, 95 %" in ran.out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "--tasks and --prompts: what is asked comes from one of them"),
        (["--prompts", "p"], "--prompts: prompts have no right answer"),
        (["--tasks", "t", "--judge", "u", "--reward", "r"], "--judge and --reward: both compare the answers"),
        (["--tasks", "t", "--judge-model", "m"], "--judge-model: is for a judge"),
        (["--tasks", "t", "--shots", "0,1"], "on one task at a time"),
    ],
)
def test_mistakes(
    run: Run, toy_dir: Path, parrot_dir: Path, task: Path, prompts: Path, more: list[str], message: str
) -> None:
    files = {"p": str(prompts), "t": str(task)}
    given = [files.get(one, one) for one in more]
    assert message in run("eval", toy_dir, "--against", parrot_dir, *given).refusal
