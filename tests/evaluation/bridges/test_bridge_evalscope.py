"""EvalScope's form of our tasks, and our form of its reviews. The program is pretended; proofs run the real one."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.answers import score_answers
from intaglio.evaluation.bridges.evalscope import EvalScope, evalscope_sheet
from intaglio.evaluation.bridges.outside import OutsideError
from intaglio.evaluation.bridges.sheet import Sheet
from intaglio.evaluation.runs import Settings, units_of
from intaglio.evaluation.tasks.item import Item, Task
from pretended_evaluators import pretend

CHOICES = Task(
    "choices",
    "choice",
    tuple(Item(str(i), f"Q: q{i} {{x}}\nA:", (" yes", " no", " so"), (i % 2,), where=f"f:{i}") for i in range(6)),
)
WRITTEN = Task("written", "generation", (Item("1", "When?", references=("then", "now")),), max_tokens=7)


def sheet(task: Task, **settings: Any) -> Sheet:
    chosen = Settings(scoring="answer", **settings)
    (unit,) = units_of([task], chosen)
    return evalscope_sheet(unit, chosen)


def test_choices_are_listed_and_named_by_letter() -> None:
    found = sheet(CHOICES)
    item = found.task.items[1]
    assert item.messages[0]["content"].startswith("Q: q1 {x}\nA:\nA) yes\nB) no\nC) so\n\n")
    assert found.questions[1].prompt == item.messages
    assert (found.task.kind, found.task.metrics, item.references) == ("generation", ("choice",), ("B",))
    scored = score_answers(found.task, {"0": "ANSWER: A", "1": "ANSWER: A", "2": "Reply 'ANSWER: [LETTER]'"})
    assert [one.scores["choice"] for one in scored.values()] == [1.0, 0.0, 0.0]


def test_shots_stand_before_the_question() -> None:
    said = sheet(CHOICES, shots=(2,)).questions[0].said or ""
    assert said.count("ANSWER: ") == 3
    assert said.count("A) yes\nB) no\nC) so\nANSWER: ") == 2


def test_what_it_cannot_say_is_refused() -> None:
    many = Item("m", "Q", tuple(f" {i}" for i in range(11)), (0,))
    with pytest.raises(UserError, match="has 11 choices, and EvalScope takes 10"):
        sheet(replace(CHOICES, items=(many,)))
    with pytest.raises(UserError, match="outside any sandbox"):
        sheet(replace(WRITTEN, kind="code", metrics=()))


def test_reviews_are_results_of_ours_and_what_it_leaves_out_is_listed(tmp_path: Path) -> None:
    python = pretend(tmp_path / "bin")
    run = EvalScope(tmp_path / "run", "http://u", "m", 4, python, "secret", {"model_hash": "h"})
    found, versions = run.run([sheet(CHOICES), sheet(WRITTEN, shots=(0,))])
    assert versions == {"evalscope": "1.2.3"}
    choices, written = found["choices"], found["written"]
    assert [one.id for one in choices.outcomes] == ["0", "1", "2", "3", "5"]
    assert [one.prediction for one in choices.outcomes] == ["A", "C", "A", "C", "C"]
    assert choices.metrics["acc"].mean == 2 / 5
    assert [(one.id, one.reason) for one in choices.unanswered] == [("4", "the evaluator says nothing of it")]
    assert written.outcomes[0].scores == {"rouge_l_f": 1.0}
    started = json.loads((tmp_path / "bin" / "started.json").read_text())
    sets = {kind: told for one in started for kind, told in one["config"]["dataset_args"].items()}
    assert sets["general_mcq"]["prompt_template"].count("[LETTER]") == 1
    assert sets["general_qa"]["metric_list"] == ["Rouge"]
    assert {one["config"]["generation_config"]["max_tokens"] for one in started} == {7, 64}
    assert all(one["environment"]["EVALSCOPE_API_KEY"] == "secret" for one in started)
    assert "secret" not in "".join(file.read_text() for file in (tmp_path / "run").rglob("*") if file.is_file())


def test_no_answer_at_all_is_a_failure(tmp_path: Path) -> None:
    python = pretend(tmp_path / "bin")
    only = replace(CHOICES, items=CHOICES.items[:1])
    program = tmp_path / "bin" / "evalscope"
    program.write_text(program.read_text().replace("number % 5 == 4", "True"))
    with pytest.raises(OutsideError, match="evalscope got no answer to any item"):
        EvalScope(tmp_path / "run", "http://u", "m", 4, python).run([sheet(only)])


def test_what_was_predicted_is_gone_on_with(tmp_path: Path) -> None:
    python = pretend(tmp_path / "bin")
    run = EvalScope(tmp_path / "run", "http://u", "m", 4, python)
    for _ in range(2):
        run.run([sheet(CHOICES)])
    run.run([sheet(replace(CHOICES, items=CHOICES.items[:3]))])
    first, second, other = json.loads((tmp_path / "bin" / "started.json").read_text())
    kept = [one["config"].get("use_cache") for one in (first, second, other)]
    assert kept == [None, str(tmp_path / "run" / "run-0" / "out"), None]
