"""`intaglio eval MODEL --tasks humaneval:FILE`: programs are run only where that is allowed, and held."""

import json
from pathlib import Path

import pytest

from intaglio.evaluation.code import sandbox
from intaglio.evaluation.code.sandbox import Namespaces
from running import Run
from toy_llms import save_parrot

PROBLEM = {
    "prompt": 'def nothing():\n """Nothing."""\n',
    "entry_point": "nothing",
    "canonical_solution": "    return None\n",
    "test": "def check(candidate):\n    assert candidate() is None\n",
}


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    rows = [{**PROBLEM, "task_id": "a"}, {**PROBLEM, "task_id": "b", "test": "def check(f):\n    assert f() == 1\n"}]
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_programs_are_run_and_counted(run: Run, problems: Path, tmp_path: Path) -> None:
    writer = save_parrot(tmp_path / "writer", answer=" 1")
    more = ("--tasks", f"humaneval:{problems}", "--out", tmp_path / "out", "--json")
    assert "give --allow-code" in run("eval", writer, *more).refusal
    assert not (tmp_path / "out" / "results.json").exists()
    assert "pass@4 needs 4 samples" in run("eval", writer, *more, "--allow-code", "--metrics", "pass@1,pass@4").refusal
    assert "no metric 'acc' of programs" in run("eval", writer, *more, "--allow-code", "--metrics", "acc").refusal
    ran = run("eval", writer, *more, "--allow-code", "--weak-sandbox")
    assert ran.status == 0, ran.err
    assert "what holds them: " in ran.err
    (task,) = json.loads(ran.out)["tasks"].values()
    assert task["metrics"]["pass@1"]["mean"] == 0.5
    items = [json.loads(line) for line in (tmp_path / "out" / "items.jsonl").read_text().splitlines()]
    assert [(one["id"], one["prediction"], one["text"]) for one in items] == [
        ("a", "passes", " 1"),
        ("b", "AssertionError", " 1"),
    ]


def test_without_a_sandbox_it_is_refused(
    run: Run, toy_dir: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object, **__: object) -> None:
        raise AssertionError("nothing may be run")

    monkeypatch.setattr(Namespaces, "run", none)
    monkeypatch.setattr(sandbox, "_proved_namespaces", lambda: "no `unshare`")
    more = ("--tasks", f"humaneval:{problems}")
    refusal = run("eval", toy_dir, *more, "--allow-code").refusal
    assert "need a sandbox, and there is none here: no `unshare`" in refusal
    assert "--weak-sandbox: has no effect without --allow-code" in run("eval", toy_dir, *more, "--weak-sandbox").refusal
