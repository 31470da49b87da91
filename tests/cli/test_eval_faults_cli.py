"""`intaglio eval` on a server that fails: what is lost is asked again or listed, and never averaged in."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from faulty_server import Fault, FaultyServer, faulty_server
from intaglio.evaluation.subjects.asking import Asker
from running import Ran, Run

QUESTIONS = (
    ("hello to the", ["assistant", "user", "answer"], "A"),
    ("the assistant says", ["hi", "42"], "B"),
    ("thanks for the", ["answer", "你好", "assistant", "user"], "C"),
    ("the user says", ["hello", "thanks"], "A"),
)
REQUESTS = sum(len(choices) for _, choices, _ in QUESTIONS)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that would have been waited, none of which is."""
    waited: list[float] = []
    defaults: Any = Asker.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "sleep", waited.append)
    return waited


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A task of choices, and a row that is none."""
    lines = [{"id": f"q{i}", "question": q, "choices": c, "answer": a} for i, (q, c, a) in enumerate(QUESTIONS)]
    odd = {"id": "odd", "question": "who?", "choices": ["me", "you"], "answer": "Z"}
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, [*lines[:2], odd, *lines[2:]])), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def healthy(toy_dir: Path) -> Any:
    with faulty_server(toy_dir) as server:
        yield server


def measure(run: Run, server: FaultyServer, rows: Path, out: Path, *more: object) -> Ran:
    return run("eval", server.url, "--tasks", rows, "--out", out, "--concurrency", 1, "--json", *more)


def items(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "items.jsonl").read_text(encoding="utf-8").splitlines()]


def told(ran: Ran) -> Mapping[str, Any]:
    (task,) = json.loads(ran.out)["tasks"].values()
    found: Mapping[str, Any] = task
    return found


@pytest.fixture
def wanted(run: Run, healthy: FaultyServer, rows: Path, tmp_path: Path) -> list[dict[str, Any]]:
    """What a server says that never fails."""
    ran = measure(run, healthy, rows, tmp_path / "healthy")
    assert ran.status == 0, ran
    return items(tmp_path / "healthy")


def test_what_fails_for_a_while_is_asked_again(
    run: Run, toy_dir: Path, rows: Path, tmp_path: Path, wanted: list[dict[str, Any]], waits: list[float]
) -> None:
    faults: dict[int, Fault] = {0: "429", 1: "429", 3: "500", 4: "500", 6: "cut", 9: "429"}
    with faulty_server(toy_dir, faults) as server:
        ran = measure(run, server, rows, tmp_path / "out")
    assert ran.status == 0, ran
    assert items(tmp_path / "out") == wanted
    assert len(server.asked) == REQUESTS + len(faults)
    assert waits.count(1.0) >= 3  # as `Retry-After` says
    assert told(ran)["unanswered"] == []


def test_what_says_nothing_is_listed_and_left_out_of_the_mean(
    run: Run, toy_dir: Path, rows: Path, tmp_path: Path, wanted: list[dict[str, Any]], waits: list[float]
) -> None:
    with faulty_server(toy_dir, {1: "malformed", 6: "no JSON"}) as server:
        ran = measure(run, server, rows, tmp_path / "out")
    found = told(ran)
    lost = [one["id"] for one in found["unanswered"]]
    assert lost == ["q0", "q2"]
    assert all(one["reason"] and one["where"].startswith(str(rows)) for one in found["unanswered"])
    kept = [one for one in wanted if one["id"] not in lost]
    assert items(tmp_path / "out") == kept
    acc = found["metrics"]["acc"]
    assert (acc["n"], acc["mean"]) == (2, sum(one["scores"]["acc"] for one in kept) / 2)
    assert "2 items" in ran.err


def test_a_server_that_dies_is_gone_on_with_when_it_is_there_again(
    run: Run, toy_dir: Path, rows: Path, tmp_path: Path, wanted: list[dict[str, Any]], waits: list[float]
) -> None:
    with faulty_server(toy_dir, {6: "die"}) as server:
        ran = measure(run, server, rows, tmp_path / "out", "--batch-size", 1)
    assert (ran.status, ran.out) == (1, "")
    (line,) = [line for line in ran.err.splitlines() if line.startswith("intaglio: ")]
    assert "does not answer any more" in line
    assert waits == sorted(waits), "each pause is as long as the one before, or longer"
    assert len(waits) >= 3
    assert not (tmp_path / "out" / "results.json").exists()
    port = int(server.url.rpartition(":")[2])
    with faulty_server(toy_dir, port=port) as again:
        ran = measure(run, again, rows, tmp_path / "out", "--batch-size", 1)
    assert ran.status == 0, ran
    assert items(tmp_path / "out") == wanted
    assert len(again.asked) == REQUESTS - 5, "the first two questions, of five choices, had been answered"


def test_a_bad_row_is_reported(run: Run, healthy: FaultyServer, rows: Path, tmp_path: Path) -> None:
    ran = measure(run, healthy, rows, tmp_path / "out")
    (bad,) = told(ran)["bad_rows"]
    assert bad["where"] == f"{rows}:3"
    assert f"{rows}:3" in ran.err
    assert told(ran)["metrics"]["acc"]["n"] == len(QUESTIONS)


def test_a_server_where_nobody_ever_was(run: Run, rows: Path, tmp_path: Path, waits: list[float]) -> None:
    ran = run("eval", "http://127.0.0.1:9", "--tasks", rows, "--out", tmp_path / "out")
    assert "127.0.0.1:9" in ran.refusal
    assert not (tmp_path / "out").exists()


def test_written_answers_too(
    run: Run, toy_dir: Path, healthy: FaultyServer, rows: Path, tmp_path: Path, waits: list[float]
) -> None:
    written: tuple[object, ...] = ("--chat", "--scoring", "generate", "--max-tokens", 4)
    assert measure(run, healthy, rows, tmp_path / "healthy", *written).status == 0
    with faulty_server(toy_dir, {0: "cut", 2: "malformed", 4: "429"}) as server:
        ran = measure(run, server, rows, tmp_path / "out", *written)
    assert [one["id"] for one in told(ran)["unanswered"]] == ["q1"]
    assert items(tmp_path / "out") == [one for one in items(tmp_path / "healthy") if one["id"] != "q1"]
