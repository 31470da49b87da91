"""`intaglio advise`: asked, told by options or a file, and measured."""

import io
import json
import sys
from pathlib import Path

import pytest

from intaglio.advice import workshop as workshop_module
from intaglio.cli.main import main
from running import Run
from scripted_workshop import ScriptedWorkshop, facts


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        """Yes."""
        return True


def test_options_say_what_the_task_needs(run: Run) -> None:
    ran = run("advise", "--knowledge", "changing", "--documents", 10**6, "--memory", 24, "--json")
    found = json.loads(ran.out)
    assert found[0]["road"] == "RAG"
    assert found[0]["costs"]["total_seconds"] > 0
    assert found[0]["commands"][0] == "intaglio rag index FOLDER --out INDEX"


def test_a_file_says_it_and_options_are_stronger(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "needs.yaml"
    file.write_text("{style: much, examples: 500, memory: 24, tflops: 1, bandwidth: 50}")
    assert json.loads(run("advise", file, "--json").out)[0]["road"] == "LoRA"
    assert json.loads(run("advise", file, "--examples", 8, "--json").out)[0]["road"] == "few-shot"
    assert "1. LoRA: learns the form from 500 examples" in run("advise", file).out


def test_whoever_sits_at_the_terminal_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["", "secret", "private", "", "", "", "100000", "", "", "", "24"]
    monkeypatch.setattr(sys, "argv", ["intaglio", "advise", "--json"])
    monkeypatch.setattr(sys, "stdin", Terminal("\n".join(typed) + "\n"))
    with pytest.raises(SystemExit):
        main()
    out = capsys.readouterr().out
    assert "Does the task need facts that the model cannot know, and do they change? (none, private, changing)" in out
    assert "knowledge: knowledge: Input should be 'none', 'private' or 'changing'" in out
    assert json.loads(out[out.index('[{"road"') :])[0]["road"] == "RAG"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "nothing is said of the task; name a YAML file, or options"),
        (("--style", "loud"), "style: Input should be 'none', 'some' or 'much'"),
        (("--measure",), "a task file says what is measured"),
        (("task.yaml", "--measure", "--style", "much"), "--style: a task file says what is measured"),
        (("--style", "much", "--out", "there"), "--out: means nothing where nothing is measured"),
    ],
)
def test_what_means_nothing_is_refused(arguments: tuple[str, ...], words: str, run: Run) -> None:
    assert words in run("advise", *arguments).refusal


def test_measured_roads_become_a_table_a_picture_and_a_winner(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        workshop_module, "LocalWorkshop", lambda task, sides, folder, say: ScriptedWorkshop(task, folder)
    )
    rows, file, out = tmp_path / "rows.jsonl", tmp_path / "task.yaml", tmp_path / "out"
    rows.write_text("".join(json.dumps(row) + "\n" for row in facts(20)), encoding="utf-8")
    side = {"path": str(rows), "rows": 10}
    asked = {"question": "{prompt}", "answer": "{completion}", "document": "{said}", "metric": "contains"}
    sizes = {"shots": [1], "chosen_on": 2, "timed": 2, "requests": 100}
    file.write_text(json.dumps({"train": side, "test": side, **asked, **sizes}))
    monkeypatch.setenv("COLUMNS", "160")
    ran = run("advise", file, "--measure", "--out", out)
    assert ran.err.startswith("road 1/6: prompt\n")
    assert "winner: RAG, 100.0 % right [100.0, 100.0], cheaper for 100 requests than LoRA+RAG\n" in ran.out
    assert "RAG (1 passage)" in ran.out
    assert (out / "roads.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads(run("advise", file, "--measure", "--out", out, "--json").out)
    assert (told["winner"], told["good_enough"]) == ("RAG", ["RAG", "LoRA+RAG"])
    assert told["roads"][0]["quality"]["mean"] == 0
