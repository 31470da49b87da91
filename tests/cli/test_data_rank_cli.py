"""`intaglio data rank`: at the terminal, by a reward, by a judge; ended and gone on with."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from intaglio.checkpoints.classifiers import save_classifier
from intaglio.cli.ranking_desk import read_order
from intaglio.errors import UserError
from intaglio.models.heads import SequenceClassifier, init_head
from intaglio.specs.families import read_directory
from running import Run
from toy_llms import random_model, toy_tokenizer

REWARD = """
def short(prompts, completions, answer, **rest):
    assert prompts[0][0]["role"] == "user" and answer == [7] * len(prompts)
    return [-len(text) for text in completions]
"""


def read(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    rows = [{"prompt": [{"role": "user", "content": text}], "answer": 7} for text in ("hi", "ho", "hi", "he")]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def ranked(run: Run, toy_dir: Path, prompts: Path, *more: object, stdin: str = "") -> Any:
    out = prompts.parent / "out.jsonl"
    arguments = ("-k", 3, "--out", out, "--max-tokens", 6, "--json", *more)
    ran = run("data", "rank", toy_dir, prompts, *arguments, stdin=stdin)
    assert ran.status == 0, ran.err
    return json.loads(ran.out), read(out), ran.err


def test_by_a_reward_function(run: Run, toy_dir: Path, prompts: Path) -> None:
    file = prompts.parent / "mine.py"
    file.write_text(REWARD)
    report, rows, said = ranked(run, toy_dir, prompts, "--reward", f"{file}:short")
    assert (report["prompts"], report["ranked"], report["left"]) == (3, 3, 0)  # one of four is asked twice
    assert "running code of your own" in said
    for row in rows:
        assert row["scores"] == sorted(row["scores"], reverse=True) == [-len(text) for text in row["answers"]]
        assert row["answer"] == 7
    assert not list(prompts.parent.glob(".*.journal"))
    out = prompts.parent / "out.jsonl"
    assert "exists already" in run("data", "rank", toy_dir, prompts, "--out", out).refusal
    assert run("data", "check", out).out.count("3 ranked") == 1


def test_by_a_reward_model(run: Run, toy_dir: Path, prompts: Path) -> None:
    model = SequenceClassifier(random_model(read_directory(toy_dir), seed=4), 1)
    init_head(model, 1)
    folder = prompts.parent / "reward"
    save_classifier(model, folder, toy_tokenizer())
    report, rows, _ = ranked(run, toy_dir, prompts, "--reward", folder)
    assert (report["prompts"], report["ranked"], report["ranked_by"]) == (3, 3, str(folder))
    for row in rows:
        assert row["scores"] == sorted(row["scores"], reverse=True)
        assert len({*row["scores"]}) == len({*row["answers"]}) == 3
    more = ("--out", prompts.parent / "more.jsonl", "--max-tokens", 6, "--reward", toy_dir)
    assert "no reward model" in run("data", "rank", toy_dir, prompts, *more).refusal


def test_at_the_terminal_with_a_break(run: Run, toy_dir: Path, prompts: Path) -> None:
    report, rows, said = ranked(run, toy_dir, prompts, stdin="nonsense\nB > A = C\nq\n")
    assert (report["ranked"], report["left"]) == (1, 2)
    assert rows[0]["ranks"] == [1, 2, 2]
    assert "N is no answer" in said
    assert "hi" in said
    report, rows, said = ranked(run, toy_dir, prompts, stdin="cba\nu\nu\nabc\ns\n")
    assert "hi" in said  # undone twice, the first comes again
    assert (report["ranked"], report["skipped"], report["left"]) == (1, 1, 1)  # the input ended
    assert rows[0]["ranks"] == [1, 2, 3]
    report, rows, _ = ranked(run, toy_dir, prompts, stdin="a=b=c\n")
    assert (report["ranked"], report["left"], rows[1]["ranks"]) == (2, 0, [1, 1, 1])


def test_the_order_in_which_answers_are_shown_tells_nothing(run: Run, toy_dir: Path, prompts: Path) -> None:
    _, rows, said = ranked(run, toy_dir, prompts, stdin="a b c\n" * 3)
    assert all(row["ranks"] == [1, 2, 3] for row in rows)
    assert str(toy_dir.name) not in said
    first = prompts.parent / "out.jsonl"
    again = prompts.parent / "again.jsonl"
    run("data", "rank", toy_dir, prompts, "-k", 3, "--out", again, "--max-tokens", 6, stdin="a b c\n" * 3)
    assert read(again) == read(first)


def test_by_a_judge(run: Run, toy_dir: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Alphabetical:
        model = "judge-1"

        def __init__(self, url: str, model: str | None, api_key: str | None) -> None:
            assert (url, model, api_key) == ("http://there", None, "key")

        def first_words(self, messages: Sequence[Any]) -> dict[str, float]:
            first, second = (part.split("---\n")[1] for part in messages[0]["content"].split("Answer ")[1:3])
            return {"A": 0.0, "B": -20.0} if first < second else {"A": -20.0, "B": 0.0}

    monkeypatch.setattr("intaglio.retrieval.remote.UrlAnswerer", Alphabetical)
    report, rows, _ = ranked(run, toy_dir, prompts, "--judge", "http://there", "--api-key", "key", "--limit", 2)
    assert (report["ranked"], report["ranked_by"], report["judged_pairs"]) == (2, "judge-1", 6)
    assert report["turned_by_order"] == report["without_verdict"] == 0
    assert all(row["scores"] == [1.0, 0.5, 0.0] and row["ranked_by"] == "judge-1" for row in rows)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--out", "x.json"], "we write JSON Lines"),
        (["--out", "x.jsonl", "--temperature", "0"], "would draw the same answer each time"),
        (["--out", "x.jsonl", "--judge", "u", "--reward", "r"], "--judge and --reward: both rank the answers"),
        (["--out", "x.jsonl", "--judge-model", "m"], "--judge-model: is for a judge"),
        (["--out", "x.jsonl", "--max-tokens", "255"], "no prompt (4 of 4 too long)"),
    ],
)
def test_mistakes(run: Run, toy_dir: Path, prompts: Path, more: list[str], message: str) -> None:
    places = [str(prompts.parent / one) if one.startswith("x.") else one for one in more]
    assert message in run("data", "rank", toy_dir, prompts, *places).refusal


@pytest.mark.parametrize(
    ("said", "ranks"),
    [("B > A = C", [2, 1, 2]), ("cab", [2, 3, 1]), ("a,b,c", [1, 2, 3]), ("A=B=C", [1, 1, 1]), ("=a b=c", [1, 2, 2])],
)
def test_an_order_as_it_is_typed(said: str, ranks: list[int]) -> None:
    assert read_order(said, "ABC") == ranks


@pytest.mark.parametrize(
    ("said", "what"), [("ab", "C missing"), ("aabc", "A is said twice"), ("abd", "D is no answer")]
)
def test_an_order_that_is_none(said: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        read_order(said, "ABC")
