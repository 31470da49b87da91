"""lm-eval's form of our tasks, and our form of its findings. The program is pretended; proofs run the real one."""

import ast
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.bridges.lm_eval import LmEval, chats, check_sheet, completions, write_task
from intaglio.evaluation.bridges.outside import OutsideError
from intaglio.evaluation.bridges.sheet import Sheet, sheet_of
from intaglio.evaluation.results import Missing
from intaglio.evaluation.runs import Settings, units_of
from intaglio.evaluation.tasks.item import BadRow, Item, Task
from pretended_evaluators import pretend

ITEMS = (
    Item("a/1", "Q: {{ 1 }}\nA:", (" Paris", " Rome"), (0,), category="x", where="f:1"),
    Item("b", "Q: 漢字 🙂\nA:", (" 1", " two", " 2020-01-01"), (1, 2), where="f:2"),
    Item("c", "Q: c\nA:", (" y", " n"), (0,), where="f:3"),
)
CHOICES = Task("my: task", "choice", ITEMS, bad_rows=(BadRow("f:4", "odd"),), source="f")
WRITTEN = Task(
    "written",
    "generation",
    (Item("1", "When?", references=("2020-01-01", "b'\"🙂")), Item("2", "Which?", references=("B",))),
    stop=("\n",),
    max_tokens=7,
)


def sheet(task: Task, **settings: Any) -> Sheet:
    chosen = Settings(**settings)
    (unit,) = units_of([task], chosen)
    return sheet_of(unit, chosen)


def written(folder: Path, sheet: Sheet) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    write_task("t", sheet, folder)
    rows = (folder / "t.jsonl").read_text(encoding="utf-8").splitlines()
    return json.loads((folder / "t.yaml").read_text()), [json.loads(row) for row in rows]


def test_choices_are_fields_and_no_templates(tmp_path: Path) -> None:
    task, rows = written(tmp_path, sheet(CHOICES))
    assert (task["doc_to_text"], task["doc_to_choice"], task["doc_to_target"]) == ("prompt", "choices", "gold")
    assert task["target_delimiter"] == " "  # which acc_norm does not count, as ours does not
    assert [m["metric"] for m in task["metric_list"]] == ["acc", "acc_norm", "acc_bytes"]
    assert rows[0] == {"id": "item a/1", "prompt": "Q: {{ 1 }}\nA:", "choices": ["Paris", "Rome"], "gold": [0]}
    assert task["dataset_kwargs"]["data_files"]["test"] == str(tmp_path / "t.jsonl")


def test_choices_of_two_kinds_are_joined_as_they_are(tmp_path: Path) -> None:
    odd = replace(CHOICES, items=(*ITEMS, Item("d", "Q: d\nA: ", ("y", "n"), (0,))))
    task, rows = written(tmp_path, sheet(odd))
    assert task["target_delimiter"] == ""
    assert rows[0]["choices"] == [" Paris", " Rome"]


def test_shots_are_written_out(tmp_path: Path) -> None:
    alike = replace(CHOICES, items=tuple(replace(item, category="") for item in ITEMS))
    task, rows = written(tmp_path, sheet(alike, shots=(2,)))
    assert task["num_fewshot"] == 0
    assert all(row["prompt"].count("\nA:") == 3 for row in rows)


def test_references_are_literals_that_no_reader_takes_for_times(tmp_path: Path) -> None:
    task, rows = written(tmp_path, sheet(WRITTEN))
    assert ast.literal_eval(rows[0]["references"]) == ["2020-01-01", "b'\"🙂"]
    assert task["doc_to_target"] == "{{references}}"
    assert task["generation_kwargs"] == {"until": ["\n"], "max_gen_toks": 7, "do_sample": False, "temperature": 0.0}
    assert "filter_list" not in task


@pytest.mark.parametrize(
    ("metric", "text", "taken"), [("choice", "I say B, or C", "C"), ("number", "3 + 1,000.5", "1,000.5")]
)
def test_answers_are_taken_out_of_texts(tmp_path: Path, metric: str, text: str, taken: str) -> None:
    import re

    task, _ = written(tmp_path, sheet(replace(WRITTEN, metrics=(metric,))))
    (taking, first) = task["filter_list"][0]["filter"]
    assert re.findall(taking["regex_pattern"], text)[taking["group_select"]] == taken
    assert first == {"function": "take_first"}


def test_what_it_cannot_say_is_refused() -> None:
    with pytest.raises(UserError, match="lm-eval has no likelihoods in a chat; leave --chat out"):
        check_sheet(sheet(CHOICES, chat=True))
    with pytest.raises(UserError, match="lm-eval asks chats of one message only; take --shots 0"):
        check_sheet(sheet(WRITTEN, chat=True, shots=(1,)))
    with pytest.raises(UserError, match=r"would run generated programs outside any sandbox; leave --with out"):
        sheet(replace(WRITTEN, kind="code", metrics=()))


def test_findings_are_results_of_ours(tmp_path: Path) -> None:
    python = pretend(tmp_path / "bin")
    told = completions("http://u", "m", tmp_path, bos=True, max_length=99)
    run = LmEval(tmp_path / "run", "local-completions", told, 4, python, "secret", {"model_hash": "h"})
    found, versions = run.run([sheet(CHOICES), sheet(WRITTEN)])
    assert versions == {"lm_eval": "1.2.3", "transformers": "1.2.3"}
    first, second = found["my: task"].outcomes
    assert (first.id, first.category, first.where, first.prompt) == ("a/1", "x", "f:1", ITEMS[0].question)
    assert (first.prediction, first.right, first.nats) == ("Rome", ["Paris"], (-5.0, -4.0))
    assert (second.prediction, second.right) == ("1", ["two", "2020-01-01"])
    assert found["my: task"].unanswered == (Missing("c", "f:3", "no finite log-likelihood"),)
    assert found["my: task"].bad_rows == CHOICES.bad_rows
    assert found["my: task"].metrics["acc"].n == 2
    assert found["my: task"].hash == CHOICES.hash
    assert [(one.prediction, one.text, one.scores) for one in found["written"].outcomes] == [
        ("B", "it is B", {"exact_match": 0.0}),
        ("B", "it is B", {"exact_match": 1.0}),
    ]
    (started,) = json.loads((tmp_path / "bin" / "started.json").read_text())
    assert started["config"]["model_args"] == told
    assert started["environment"]["OPENAI_API_KEY"] == "secret"
    assert "secret" not in "".join(file.read_text() for file in (tmp_path / "run").rglob("*") if file.is_file())


def test_a_failure_is_told_and_what_was_answered_is_kept(tmp_path: Path) -> None:
    python = pretend(tmp_path / "bin")
    run = LmEval(tmp_path / "run", "local-completions", {}, 4, python, about={"model_hash": "h"})
    run.run([sheet(CHOICES)])
    (tmp_path / "bin" / "fail").touch()
    with pytest.raises(OutsideError, match="lm_eval ended with status 3: the last words"):
        run.run([sheet(CHOICES)])
    answers = tmp_path / "run" / "answers_rank0.db"
    assert answers.exists()
    with pytest.raises(OutsideError):
        replace(run, about={"model_hash": "another"}).run([sheet(CHOICES)])
    assert not answers.exists()


def test_what_the_kinds_of_models_are_told(tmp_path: Path) -> None:
    assert completions("http://u", "m", None, bos=False, max_length=9) == {
        "model": "m",
        "base_url": "http://u/v1/completions",
        "num_concurrent": 1,
        "max_retries": 8,
        "tokenizer_backend": "remote",
        "add_bos_token": False,
        "max_length": 9,
    }
    assert chats("http://u", "m", 3)["base_url"] == "http://u/v1/chat/completions"
