"""lm-eval in our own process: a subject answers as one of its models. It is pretended; proofs run the real one."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from intaglio.engine.sampling_params import SamplingParams
from intaglio.evaluation.bridges.lm_eval_inside import is_inside, run_inside
from intaglio.evaluation.bridges.outside import OutsideError
from intaglio.evaluation.bridges.sheet import Sheet, sheet_of
from intaglio.evaluation.runs import Settings, units_of
from intaglio.evaluation.subjects.subject import Answer, Likelihood, Prompt, Unanswered
from intaglio.evaluation.tasks.item import Item, Task

PACKAGE = {
    "__init__.py": "",
    "api/__init__.py": "",
    "api/model.py": """
import abc
class LM(abc.ABC):
    def __init__(self):
        self.ready = True
    loglikelihood = loglikelihood_rolling = generate_until = abc.abstractmethod(lambda self, requests: None)
""",
    "tasks.py": """
class TaskManager:
    def __init__(self, include_path):
        self.include_path = include_path
""",
    "evaluator.py": """
import json
from pathlib import Path
from types import SimpleNamespace

def asked(*args):
    return SimpleNamespace(args=args)

def rows(model, task):
    docs = [json.loads(line) for line in open(task["dataset_kwargs"]["data_files"]["test"], encoding="utf-8")]
    if task["output_type"] == "multiple_choice":
        part = task["target_delimiter"]
        for doc in docs:
            told = model.loglikelihood([asked(doc["prompt"], part + choice) for choice in doc["choices"]])
            right = float(max(range(len(told)), key=lambda i: told[i][0]) in doc["gold"])
            yield {"doc": doc, "resps": [[one] for one in told], "acc": right, "acc_norm": right, "acc_bytes": right}
        return
    said = model.generate_until([asked(doc["prompt"], task["generation_kwargs"]) for doc in docs])
    for doc, text in zip(docs, said):
        yield {"doc": doc, "resps": [[text]], "filtered_resps": [text], "exact_match": float(text in doc["references"])}

def simple_evaluate(model, tasks, task_manager, bootstrap_iters):
    assert model.ready
    read = lambda name: json.loads((Path(task_manager.include_path) / f"{name}.yaml").read_text())
    return {"samples": {name: list(rows(model, read(name))) for name in tasks}}
""",
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, source in PACKAGE.items():
        file = tmp_path / "lm_eval" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    about = tmp_path / "lm_eval-1.2.3.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: lm_eval\nVersion: 1.2.3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        del sys.modules[name]


class Counting:
    """Finds a continuation as likely as it is short, and answers with how it was asked."""

    name, tokenizer = "counting", None

    def __init__(self, silent: str = "") -> None:
        self.silent = silent

    context: int | None = None

    def identity(self) -> dict[str, Any]:
        return {}

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood | Unanswered]:
        return [
            Unanswered("too long") if text == self.silent else Likelihood(-float(len(text)), 1, False)
            for _, text in pairs
        ]

    def log_probs(self, rows: Sequence[Sequence[int]]) -> list[list[float] | Unanswered]:
        raise NotImplementedError

    def answers(self, prompts: Sequence[Prompt], params: SamplingParams) -> list[Answer | Unanswered]:
        kinds = ["text" if isinstance(prompt, str) else str(prompt[0]["role"]) for prompt in prompts]
        return [Answer(f"{kind} of {len(prompts)}, {params.max_tokens}, {params.stop}", "stop", 1) for kind in kinds]


CHOICES = Task("choices", "choice", tuple(Item(str(i), f"Q{i}:", (" no", " yes"), (i % 2,)) for i in range(2)))
ITEMS = (Item("1", "a", references=("x",)), Item("2", "b", references=("text of 2, 7, ('.',)",)))
WRITTEN = Task("written", "generation", ITEMS, stop=(".",), max_tokens=7)


def sheet(task: Task, **settings: Any) -> Sheet:
    chosen = Settings(**settings)
    (unit,) = units_of([task], chosen)
    return sheet_of(unit, chosen)


@pytest.mark.usefixtures("package")
def test_a_subject_is_one_of_its_models(tmp_path: Path) -> None:
    assert is_inside()
    sheets = [sheet(CHOICES), sheet(WRITTEN), sheet(replace(WRITTEN, name="said"), chat=True)]
    found, versions = run_inside(sheets, Counting(), tmp_path / "run")
    assert versions == {"lm_eval": "1.2.3"}
    choices = found["choices"].outcomes
    assert [(one.prediction, one.nats, one.scores["acc"]) for one in choices] == [
        ("no", (-3.0, -4.0), 1.0),
        ("no", (-3.0, -4.0), 0.0),
    ]
    assert [one.scores["exact_match"] for one in found["written"].outcomes] == [0.0, 1.0]
    assert [one.text for one in found["said"].outcomes] == ["user of 2, 7, ()"] * 2


@pytest.mark.usefixtures("package")
def test_what_has_no_answer_is_no_number(tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="lm-eval got no answer: too long"):
        run_inside([sheet(CHOICES)], Counting(silent=" yes"), tmp_path / "run")
