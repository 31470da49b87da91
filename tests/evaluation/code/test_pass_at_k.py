"""HumanEval: problems, the programs that answers make, and how many of them pass."""

import json
from itertools import combinations
from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.answers import Scored
from intaglio.evaluation.code.human_eval import human_eval, program_of
from intaglio.evaluation.code.pass_at_k import asked_ks, pass_at_k, score_code
from intaglio.evaluation.code.sandbox import DEFAULT, Limits, LimitsOnly, Verdict
from intaglio.evaluation.tasks.item import Task

PROMPT = 'from typing import List\n\n\ndef total(numbers: List[int]) -> int:\n    """The sum.\n    """\n'
ROW = {
    "task_id": "Toy/0",
    "prompt": PROMPT,
    "entry_point": "total",
    "canonical_solution": "    return sum(numbers)\n",
    "test": "\n\ndef check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n",
}


@pytest.fixture
def toy(tmp_path: Path) -> Task:
    """Two problems and two rows that are none."""
    rows = [ROW, {**ROW, "task_id": "Toy/1"}, {**ROW, "entry_point": "a b", "task_id": "x"}, {"prompt": "y"}]
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return human_eval(path)


def test_problems_are_read_and_bad_rows_told(toy: Task) -> None:
    assert [item.id for item in toy.items] == ["Toy/0", "Toy/1"]
    assert (toy.kind, toy.metrics, toy.items[0].question) == ("code", ("pass@1",), PROMPT)
    assert [row.where.rpartition(":")[2] for row in toy.bad_rows] == ["3", "4"]
    assert "'a b', no name" in toy.bad_rows[0].why


@pytest.mark.parametrize(
    "written",
    [
        "    return sum(numbers)\n",
        "    return sum(numbers)\n\ndef other():\n    return 1 / 0\n\nother()",
        "    return sum(numbers)\nprint(1 / 0)",
        "Here it is:\n```python\nimport math\n\ndef total(numbers: List[int]):\n    return sum(numbers)\n```\nDone!",
        "```\n    return sum(numbers)\n```",
        "```python\ndef total(numbers):\n    return sum(numbers)",
    ],
)
def test_what_is_written_becomes_a_program(toy: Task, written: str) -> None:
    exec(program_of(toy.items[0], written), {})


def test_programs_are_run_and_counted(toy: Task) -> None:
    right, wrong, early = "    return sum(numbers)", "    return 0", "    import os\n    os._exit(0)"
    told: list[str] = []
    rows = score_code(toy, {"Toy/0": [right], "Toy/1": [wrong]}, LimitsOnly(), done=told.append)
    assert rows == {"Toy/0": Scored("passes", {"pass@1": 1}), "Toy/1": Scored("AssertionError", {"pass@1": 0})}
    assert told == ["Toy/0", "Toy/1"]
    rows = score_code(toy, {"Toy/1": [early]}, LimitsOnly())
    assert rows["Toy/1"].scores == {"pass@1": 0}


class Script:
    """Verdicts in order."""

    name = "script"

    def run(self, program: str, limits: Limits = DEFAULT) -> Verdict:
        """Passes what says so."""
        return Verdict("good" in program)


def test_several_samples_and_several_ks(toy: Task) -> None:
    several = Task("t", "code", toy.items, metrics=("pass@1", "pass@2"))
    rows = score_code(several, {"Toy/0": ["good", "bad", "bad", "good"]}, Script())
    assert rows["Toy/0"].prediction == "2 of 4 pass"
    assert rows["Toy/0"].scores == pytest.approx({"pass@1": 0.5, "pass@2": 5 / 6})
    with pytest.raises(UserError, match="pass@2 needs 2 samples, and there are 1"):
        score_code(several, {"Toy/0": ["good"]}, Script())
    with pytest.raises(UserError, match="no metric 'acc' of programs"):
        asked_ks(Task("t", "code", toy.items, metrics=("acc",)))


@pytest.mark.parametrize(("n", "c"), [(1, 0), (1, 1), (5, 0), (5, 2), (5, 5), (7, 3)])
def test_the_estimator_is_the_share_of_draws_with_a_right_one(n: int, c: int) -> None:
    for k in range(1, n + 1):
        draws = [any(one < c for one in draw) for draw in combinations(range(n), k)]
        assert pass_at_k(n, c, k) == pytest.approx(sum(draws) / len(draws))
