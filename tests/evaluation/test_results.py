"""Results on disk: what is written is what is read, means and intervals included."""

import json
from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.intervals import bootstrap_mean
from intaglio.evaluation.results import (
    ITEMS,
    RESULTS,
    Missing,
    Outcome,
    Results,
    Summary,
    TaskResult,
    read_results,
    write_results,
)
from intaglio.evaluation.tasks.item import BadRow


def outcome(number: int, category: str, **scores: float) -> Outcome:
    """Of item `number`."""
    nats = [-1.0, -2.5]
    return Outcome("t", str(number), category, f"f:{number}", "Q?\nA:", "a", ["a"], scores, nats, [1, 2], "")


OUTCOMES = (outcome(1, "x", acc=1, f1=0.5), outcome(2, "y", acc=0), outcome(3, "x", acc=1))
RESULT = TaskResult(
    "choice",
    "ab12",
    "f.jsonl",
    OUTCOMES,
    (BadRow("f:4", "no answer"),),
    (Missing("5", "f:5", "lost"),),
    {"bleu": Summary(31.0, 20.0, 40.0, 3)},
)
RESULTS_OF_A_RUN = Results({"name": "toy"}, {"shots": [0]}, {"torch": "2"}, {"t": RESULT})


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write_results(tmp_path / "run", RESULTS_OF_A_RUN)
    found = read_results(tmp_path / "run")
    assert found == RESULTS_OF_A_RUN
    assert read_results(tmp_path / "run" / RESULTS) == found
    assert found.tasks["t"].metrics == RESULT.metrics


def test_each_metric_is_a_mean_over_those_that_have_it(tmp_path: Path) -> None:
    write_results(tmp_path, RESULTS_OF_A_RUN)
    told = json.loads((tmp_path / RESULTS).read_text())
    assert told["format"] == "intaglio-eval/1"
    task = told["tasks"]["t"]
    mean, low, high = bootstrap_mean([1, 0, 1])
    assert task["metrics"]["acc"] == {"mean": mean, "low": low, "high": high, "n": 3}
    assert task["metrics"]["f1"]["n"] == 1
    assert task["metrics"]["bleu"] == {"mean": 31.0, "low": 20.0, "high": 40.0, "n": 3}
    assert {name: found["acc"]["n"] for name, found in task["categories"].items()} == {"x": 2, "y": 1}
    assert (task["items"], task["hash"], task["source"]) == (3, "ab12", "f.jsonl")
    assert task["bad_rows"] == [{"where": "f:4", "why": "no answer"}]
    assert task["unanswered"] == [{"id": "5", "where": "f:5", "reason": "lost"}]
    assert len((tmp_path / ITEMS).read_text().splitlines()) == 3


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text("{}")
    with pytest.raises(UserError, match="holds no results of the format intaglio-eval/1"):
        read_results(tmp_path)
    write_results(tmp_path, RESULTS_OF_A_RUN)
    (tmp_path / ITEMS).write_text('{"task": "t"}\n')
    with pytest.raises(UserError, match="damaged"):
        read_results(tmp_path)
