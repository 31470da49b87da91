"""The command line as whole processes: help, one-line errors, statuses, a reader that leaves, Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from intaglio.cli.main import app
from running import Run
from toy_llms import ANSWER

INTAGLIO = [sys.executable, "-m", "intaglio.cli.main"]
VERBS = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}


def start(*arguments: object, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    command = [*INTAGLIO, *map(str, arguments)]
    pipe = subprocess.PIPE

    def hear_ctrl_c() -> None:
        """A shell's background jobs ignore it, and so would our process if the tests are one."""
        signal.signal(signal.SIGINT, signal.default_int_handler)

    return subprocess.Popen(
        command, stdin=stdin, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT, preexec_fn=hear_ctrl_c
    )


def test_the_verbs_are_all_there() -> None:
    assert set(VERBS) >= {"lineage", "show", "diff", "pull", "convert", "generate", "chat", "demo"}


@pytest.mark.parametrize("verb", [[], *([verb] for verb in VERBS), ["tokenizer"], ["tokenizer", "train"]])
def test_every_verb_explains_itself(run: Run, verb: list[str]) -> None:
    ran = run(*verb, "--help")
    assert (ran.status, ran.err) == (0, "")
    assert " ".join(["Usage: intaglio", *verb]) in ran.out


def test_without_a_verb_there_is_help(run: Run) -> None:
    for verb in ([], ["tokenizer"]):
        ran = run(*verb)
        assert (ran.status, ran.err) == (2, "")
        assert "Usage: intaglio" in ran.out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["lineag"], "No such command 'lineag'. Did you mean 'lineage'?; see `intaglio --help`"),
        (["--loud"], "No such option: --loud; see `intaglio --help`"),
        (["chat"], "Missing argument 'model'; see `intaglio chat --help`"),
        (["tokenizer", "train", "x"], "Missing option '--out'; see `intaglio tokenizer train --help`"),
    ],
)
def test_usage_errors_are_one_line(run: Run, arguments: list[str], line: str) -> None:
    assert run(*arguments).refusal == f"intaglio: {line}"


def test_what_the_machine_refuses_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*anything: object) -> None:
        raise PermissionError(13, "Permission denied", "/vault")

    monkeypatch.setattr("intaglio.cli.options.load_llm", refuse)
    assert run("generate", "x", "hello").refusal == "intaglio: /vault: Permission denied"


def test_a_fault_of_ours_is_not_hidden(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*anything: object) -> None:
        raise AssertionError("ours")

    monkeypatch.setattr("intaglio.cli.options.load_llm", fail)
    with pytest.raises(AssertionError, match="ours"):
        run("generate", "x", "hello")


def test_a_users_mistake_as_a_process() -> None:
    out, err = (process := start("generate", "smolm2-135m-instruct", "hello")).communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("intaglio: unknown model 'smolm2-135m-instruct'; did you mean smollm2-135m-instruct")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", ["lineage", "show gpt2 --json", "--help", "tokenizer train {0}/in --out {0}/out --vocab-size 300"]
)
def test_a_reader_that_leaves_is_no_fault(tmp_path: Path, arguments: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "text").write_text("to be or not to be")
    process = start(*arguments.format(tmp_path).split())
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()  # before anything is written
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 1


def test_ctrl_c_ends_a_process_quietly(toy_dir: Path) -> None:
    process = start("chat", toy_dir, stdin=subprocess.PIPE)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("/reset")  # it waits for the first question
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


def test_a_conversation_as_a_process(parrot_dir: Path) -> None:
    process = start("chat", parrot_dir, "--max-tokens", 20, stdin=subprocess.PIPE)
    out, err = process.communicate("hi\n/restart\nhello\n", timeout=60)
    assert (process.returncode, out) == (0, f"{ANSWER}\n" * 2)
    assert len(err.splitlines()) == 3
