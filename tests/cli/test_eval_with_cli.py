"""`intaglio eval --with`: which server is asked, what is refused, what stays of it. The frameworks are pretended."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faulty_server import FaultyServer, faulty_server
from intaglio.evaluation.bridges.outside import PYTHON
from intaglio.evaluation.results import read_results
from pretended_evaluators import pretend
from running import Run


@pytest.fixture(scope="module")
def server(toy_dir: Path) -> Iterator[FaultyServer]:
    with faulty_server(toy_dir) as server:
        yield server


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    lines = [{"id": f"q{i}", "question": f"say {i}", "choices": ["yes", "no"], "answer": "B"} for i in range(2)]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    python = pretend(tmp_path / "bin")
    monkeypatch.setenv(PYTHON, str(python))
    return python


def started(python: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(python.with_name("started.json").read_text())
    return found


def test_lm_eval_asks_a_server_that_tells_its_tokens(
    run: Run, server: FaultyServer, rows: Path, python: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    ran = run("eval", server.url, "--tasks", rows, "--with", "lm-eval", "--out", out, "--json", "--api-key", "sesame")
    assert ran.status == 0, ran
    found = read_results(out)
    assert (found.settings["with"], found.versions["lm_eval"]) == ("lm-eval", "1.2.3")
    assert (found.model["url"], found.model["name"]) == (server.url, "toy")
    (task,) = found.tasks.values()
    assert [one.prediction for one in task.outcomes] == ["no", "no"]  # the shorter is the likelier, it pretends
    assert json.loads(ran.out)["tasks"][next(iter(found.tasks))]["metrics"]["acc"]["mean"] == 1
    (begun,) = started(python)
    assert begun["config"]["model_args"]["base_url"] == f"{server.url}/v1/completions"
    assert begun["config"]["model_args"]["tokenizer_backend"] == "remote"
    assert begun["config"]["model_args"]["max_length"] == 256
    assert begun["environment"]["OPENAI_API_KEY"] == "sesame"
    assert "sesame" not in "".join(file.read_text() for file in out.rglob("*") if file.is_file())


def test_a_tokenizer_that_is_named_is_opened_there(
    run: Run, server: FaultyServer, rows: Path, python: Path, tmp_path: Path, toy_dir: Path
) -> None:
    asked = ("eval", server.url, "--tasks", rows, "--with", "lm-eval", "--out", tmp_path / "out")
    assert run(*asked, "--tokenizer", toy_dir).status == 0
    told = started(python)[0]["config"]["model_args"]
    assert (told["tokenizer_backend"], told["tokenizer"]) == ("huggingface", str(toy_dir))


def test_chats_and_texts_are_two_runs(run: Run, server: FaultyServer, rows: Path, python: Path, tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    chats.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}], "answer": "B"}))
    out = tmp_path / "out"
    ran = run("eval", server.url, "--tasks", f"{rows},{chats}", "--with", "lm-eval", "--out", out)
    assert ran.status == 0, ran
    kinds = [(one["config"]["model"], one["config"].get("apply_chat_template")) for one in started(python)]
    assert kinds == [("local-completions", None), ("local-chat-completions", True)]
    assert [len(task.outcomes) for task in read_results(out).tasks.values()] == [2, 1]


def test_other_results_are_not_written_over(
    run: Run, server: FaultyServer, rows: Path, python: Path, tmp_path: Path
) -> None:
    asked = ("eval", server.url, "--tasks", rows, "--out", tmp_path / "out")
    assert run(*asked, "--with", "lm-eval").status == 0
    assert run(*asked, "--with", "lm-eval").status == 0
    refused = run(*asked, "--with", "evalscope").refusal
    assert "holds an evaluation with other settings; give another --out" in refused


def test_its_own_tasks_beside_ours(run: Run, server: FaultyServer, rows: Path, python: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = ("eval", server.url, "--with", "lm-eval", "--out", out)
    assert run(*asked, "--tasks", f"{rows},lm-eval:chosen").status == 0
    assert [len(task.outcomes) for task in read_results(out).tasks.values()] == [2, 1]
    assert run(*asked, "--tasks", "lm-eval:written").status == 0
    assert list(read_results(out).tasks) == ["lm-eval:written"]
    refused = run("eval", server.url, "--with", "evalscope", "--tasks", "lm-eval:chosen").refusal
    assert "lm-eval:chosen: is lm-eval's own task; take --with lm-eval" in refused


def test_evalscope_asks_it_as_a_chat(run: Run, server: FaultyServer, rows: Path, python: Path, tmp_path: Path) -> None:
    ran = run("eval", server.url, "--tasks", rows, "--with", "evalscope", "--out", tmp_path / "out", "--json")
    assert ran.status == 0, ran
    (task,) = read_results(tmp_path / "out").tasks.values()
    assert [one.scores["acc"] for one in task.outcomes] == [1.0, 0.0]
    assert started(python)[0]["config"]["api_url"] == f"{server.url}/v1"


def test_a_failure_is_one_line_and_nothing_is_called_a_result(
    run: Run, server: FaultyServer, rows: Path, python: Path, tmp_path: Path
) -> None:
    python.with_name("fail").touch()
    ran = run("eval", server.url, "--tasks", rows, "--with", "lm-eval", "--out", tmp_path / "out")
    assert (ran.status, ran.out, ran.err.count("\n")) == (1, "", 1)
    assert ran.err.startswith("intaglio: lm_eval ended with status 3: the last words")
    assert not (tmp_path / "out" / "results.json").exists()


@pytest.mark.parametrize(
    ("framework", "options", "message"),
    [
        ("lm-eval", ("--temperature", 1), "--temperature: has no effect with --with lm-eval"),
        ("lm-eval", ("--metrics", "f1"), "--metrics: has no effect"),
        ("lm-eval", ("--chat",), "lm-eval has no likelihoods in a chat"),
        ("evalscope", ("--scoring", "letter"), "--scoring: EvalScope knows no likelihoods"),
        ("evalscope", ("--adapter", "a"), "--adapter: has no effect on a server's model"),
        (
            "evalscope",
            ("--python", "nowhere/python"),
            "nowhere/python: evalscope is not installed; run `make eval-env`",
        ),
    ],
)
def test_what_it_would_not_follow_is_refused(
    run: Run, rows: Path, python: Path, tmp_path: Path, framework: str, options: tuple[Any, ...], message: str
) -> None:
    asked = ("eval", "http://127.0.0.1:9", "--tasks", rows, "--with", framework, "--out", tmp_path / "out")
    assert message in run(*asked, *options).refusal
    assert not (tmp_path / "out" / "results.json").exists()
