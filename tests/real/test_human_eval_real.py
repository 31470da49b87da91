"""HumanEval's own solutions pass in the sandbox, and nothing else does."""

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.code.human_eval import pulled_human_eval
from intaglio.evaluation.code.pass_at_k import score_code
from intaglio.evaluation.code.sandbox import LimitsOnly, Sandbox, find_sandbox
from intaglio.evaluation.tasks.item import Task

pytestmark = [pytest.mark.real, pytest.mark.prove]

EMPTY = "    pass\n"
EARLY = "    import os\n    os._exit(0)\n"


@pytest.fixture(scope="module")
def problems() -> Task:
    return pulled_human_eval()


@pytest.fixture(params=["namespaces", "limits only"])
def box(request: pytest.FixtureRequest) -> Sandbox:
    if request.param == "limits only":
        return LimitsOnly()
    try:
        return find_sandbox()
    except UserError as error:
        pytest.skip(str(error))


def passing(problems: Task, texts: dict[str, str], box: Sandbox) -> list[str]:
    rows = score_code(problems, {name: [text] for name, text in texts.items()}, box)
    return [name for name, row in rows.items() if row.scores["pass@1"]]


def test_all_164_published_solutions_pass(problems: Task, box: Sandbox) -> None:
    solutions = {item.id: item.references[0] for item in problems.items}
    assert len(solutions) == 164
    assert passing(problems, solutions, box) == [*solutions]


@pytest.mark.parametrize("text", [EMPTY, EARLY])
def test_nothing_passes_by_doing_nothing_or_leaving_early(problems: Task, box: Sandbox, text: str) -> None:
    assert passing(problems, {item.id: text for item in problems.items}, box) == []
