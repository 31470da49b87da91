"""`intaglio chat`: turns on standard input, answers on standard output, everything else beside it."""

import builtins
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from intaglio import LLM
from running import Run
from toy_llms import ANSWER

Messages = list[dict[str, str]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Messages]:
    """The conversations that the model is asked to go on with, as they come."""
    seen: list[Messages] = []
    real = LLM.chat

    def chat(self: LLM, messages: Sequence[Mapping[str, Any]], *more: Any) -> Iterator[str]:
        seen.append([dict(message) for message in messages])
        return real(self, messages, *more)

    monkeypatch.setattr(LLM, "chat", chat)
    return seen


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


PARROT = {"role": "assistant", "content": ANSWER}
SYSTEM = {"role": "system", "content": "the 42"}


def test_several_turns_keep_their_history(run: Run, parrot_dir: Path, asked: list[Messages]) -> None:
    ran = run("chat", parrot_dir, "--max-tokens", 20, stdin="hi\n\nhello\n")
    assert (ran.status, ran.out) == (0, f"{ANSWER}\n" * 2)
    assert asked == [[user("hi")], [user("hi"), PARROT, user("hello")]]
    first, last = ran.err.splitlines()
    assert first.startswith("/reset")
    assert last.startswith("[28 tokens, ")


def test_a_system_message_stays_when_the_rest_is_forgotten(run: Run, parrot_dir: Path, asked: list[Messages]) -> None:
    run("chat", parrot_dir, "--system", "the 42", "--max-tokens", 20, stdin="hi\n/reset\nhello\n")
    assert asked == [[SYSTEM, user("hi")], [SYSTEM, user("hello")]]


def test_the_end_may_be_said_or_come(run: Run, parrot_dir: Path, asked: list[Messages]) -> None:
    assert run("chat", parrot_dir, stdin="/exit\nhi\n").status == 0
    assert run("chat", parrot_dir, stdin="").status == 0
    assert asked == []


def test_an_unknown_command_shows_the_known_ones(run: Run, parrot_dir: Path, asked: list[Messages]) -> None:
    ran = run("chat", parrot_dir, stdin="/restart\n/save\n")
    assert ran.err.count("/reset forgets the conversation, /save FILE") == 3
    assert asked == []


def test_a_conversation_is_saved_and_taken_up_again(
    run: Run, parrot_dir: Path, tmp_path: Path, asked: list[Messages]
) -> None:
    file = tmp_path / "talk of today.json"
    run("chat", parrot_dir, "--max-tokens", 20, stdin=f"hi\n/save {file}\n")
    assert json.loads(file.read_text(encoding="utf-8")) == [user("hi"), PARROT]
    run("chat", parrot_dir, "--load", file, "--max-tokens", 20, stdin="hello\n/reset\nhi\n")
    assert asked[1:] == [[user("hi"), PARROT, user("hello")], [user("hi"), PARROT, user("hi")]]


def test_a_place_that_cannot_be_written_costs_nothing(run: Run, parrot_dir: Path, asked: list[Messages]) -> None:
    ran = run("chat", parrot_dir, "--max-tokens", 20, stdin="hi\n/save /dev/null/x\nhello\n")
    assert ran.status == 0
    assert "intaglio: /dev/null/x: cannot write" in ran.err
    assert len(asked[1]) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ('{"role": "user"}', "messages: a list of messages is expected, not dict"),
        ('["hi"]', "messages[0]"),
        ('[{"role": "user"}]', "messages[0].content"),
    ],
)
def test_a_file_that_is_no_conversation(run: Run, parrot_dir: Path, tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "talk.json"
    file.write_text(content)
    line = run("chat", parrot_dir, "--load", file, stdin="hi\n").refusal
    assert str(file) in line
    assert message in line


def test_nothing_may_be_saved_and_taken_up_too(
    run: Run, parrot_dir: Path, tmp_path: Path, asked: list[Messages]
) -> None:
    run("chat", parrot_dir, stdin=f"/save {tmp_path / 'talk.json'}\n")
    run("chat", parrot_dir, "--load", tmp_path / "talk.json", "--max-tokens", 20, stdin="hi\n")
    assert asked == [[user("hi")]]


def test_a_loaded_conversation_has_its_own_system_message(run: Run, parrot_dir: Path, tmp_path: Path) -> None:
    ran = run("chat", parrot_dir, "--load", tmp_path / "nowhere.json", "--system", "x")
    assert "the loaded conversation has its own beginning" in ran.refusal
    assert "cannot read" in run("chat", parrot_dir, "--load", tmp_path / "nowhere.json").refusal


def test_a_full_context_is_told_and_the_conversation_goes_on(run: Run, parrot_dir: Path, asked: list[Messages]) -> None:
    long = "x" * 90
    ran = run("chat", parrot_dir, "--max-tokens", 14, stdin=f"hi\n{long}\nhello\n")
    assert ran.status == 0
    assert ran.out == f"{ANSWER}\n" * 2
    assert "tokens do not fit into a context of 96" in ran.err or "new ones do not fit into a context of 96" in ran.err
    assert asked[2] == [user("hi"), PARROT, user("hello")]
    assert ran.err.splitlines()[-1].startswith("[28 tokens, ")  # the refused turn made none


def test_ctrl_c_stops_an_answer_and_not_the_conversation(
    run: Run, parrot_dir: Path, asked: list[Messages], monkeypatch: pytest.MonkeyPatch
) -> None:
    show, shown = builtins.print, []

    def interrupted(*words: Any, **options: Any) -> None:
        show(*words, **options)
        shown.append("".join(map(str, words)))
        if "".join(shown).endswith("QUICK") and len(asked) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("intaglio.cli.chat.print", interrupted, raising=False)
    ran = run("chat", parrot_dir, "--max-tokens", 20, stdin="hi\nhello\n")
    assert ran.status == 0
    assert ran.out == f"QUICK\n{ANSWER}\n"
    assert "[stopped]" in ran.err
    assert asked[1] == [user("hi"), {"role": "assistant", "content": "QUICK"}, user("hello")]


def test_ctrl_c_while_nobody_speaks_ends_it(run: Run, parrot_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(prompt: str = "") -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(builtins, "input", interrupted)
    ran = run("chat", parrot_dir)
    assert ran.status == 130
    assert "Traceback" not in ran.err


def test_bytes_that_are_no_text(run: Run, parrot_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def undecodable(prompt: str = "") -> str:
        return b"caf\xe9".decode("utf-8")

    monkeypatch.setattr(builtins, "input", undecodable)
    ran = run("chat", parrot_dir)
    assert ran.status == 2
    assert ran.err.splitlines()[-1] == "intaglio: standard input: not UTF-8 text"


def test_a_model_without_a_template_is_told_before_the_first_turn(run: Run, parrot_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(parrot_dir, tmp_path / "base")
    (tmp_path / "base" / "chat_template.jinja").unlink()
    assert "no chat template" in run("chat", tmp_path / "base", stdin="hi\n").refusal


def test_a_seed_makes_a_conversation_repeatable(run: Run, toy_dir: Path) -> None:
    def talk(seed: int) -> str:
        return run("chat", toy_dir, "--seed", seed, "--max-tokens", 15, stdin="hi\nhello\n").out

    assert talk(3) == talk(3) != talk(4)
