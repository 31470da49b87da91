"""EvalScope on an OpenAI-style server: our tasks as its `general_mcq` and `general_qa` folders, its reviews as results.

It asks chats and reads what is written; likelihoods it does not know. Its own templates are Chinese and its BLEU wants
a download, so it is given ours, and ROUGE alone. Items that it could not get an answer to are left out of its means
without a word (`ignore_errors`); here they are listed. It resumes from what it has predicted, as long as the same is
asked; scores are made anew, since a server of ours has another port each time, which it would take for another model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from intaglio.errors import UserError
from intaglio.evaluation.bridges.outside import OutsideError, begin, find_program, run_program, version_of
from intaglio.evaluation.bridges.sheet import Finding, Question, Sheet, sheet_of
from intaglio.evaluation.results import TaskResult
from intaglio.evaluation.runs import Settings, Unit
from intaglio.evaluation.tasks.item import Item
from intaglio.files import read_json_lines, write_json, write_json_lines

__all__ = ["EvalScope", "evalscope_sheet", "write_subset"]

_LETTERS: Final = "ABCDEFGHIJ"
"""`general_mcq` knows no more choices."""
_TEMPLATE: Final = (
    "{question}\n{choices}\n\nReply with the letter of the right choice, in this form: 'ANSWER: [LETTER]'."
)
"""How it puts a question: the marker in it makes it look for `ANSWER: ` and a letter."""
_MCQ: Final = "general_mcq"
_QA: Final = "general_qa"
_FORMS: Final[dict[str, dict[str, Any]]] = {
    _MCQ: {"prompt_template": _TEMPLATE},
    _QA: {"prompt_template": "{question}", "metric_list": ["Rouge"]},
}
_RUN: Final = """
import json, os, sys
from evalscope.config import TaskConfig
from evalscope.run import run_task
with open(sys.argv[1], encoding="utf-8") as file:
    run_task(TaskConfig(**json.load(file), api_key=os.environ["EVALSCOPE_API_KEY"]))
"""
"""The key goes through the environment: an option would show in the list of processes."""


@dataclass(frozen=True)
class EvalScope:
    """Runs of EvalScope, one for all tasks that end an answer alike.

    Attributes:
        folder: for the data sets that are written, its own files and its log; absolute.
        url: of the server, without `/v1`.
        model: its name there.
        batch_size: requests at once.
        python: see `find_program`.
        key: of the server; it is not written anywhere.
        about: all that decides the answers besides the questions: what was answered is kept while it is the same.
    """

    folder: Path
    url: str
    model: str
    batch_size: int = 8
    python: Path | None = None
    key: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def run(self, sheets: Sequence[Sheet]) -> tuple[dict[str, TaskResult], dict[str, str]]:
        """What it finds for each task, by name, and the versions that had a say.

        Raises:
            UserError: it is not installed, or a task cannot be said in its form.
            OutsideError: it failed, or got no answer at all.
        """
        program = find_program("evalscope", self.python)
        found: dict[str, TaskResult] = {}
        for number, (_, group) in enumerate(groupby(sorted(sheets, key=_ending), key=_ending)):
            found |= self._run(program, self.folder / f"run-{number}", list(group))
        if not any(result.outcomes for result in found.values()):
            raise OutsideError(f"evalscope got no answer to any item ({self.folder} has its logs)")
        return {sheet.task.name: found[sheet.task.name] for sheet in sheets}, {
            "evalscope": version_of(program, "evalscope")
        }

    def _run(self, program: Path, folder: Path, sheets: Sequence[Sheet]) -> dict[str, TaskResult]:
        subsets = {f"t{number}": sheet for number, sheet in enumerate(sheets)}
        rows = {name: [[_row(q), q.prompt] for q in sheet.questions] for name, sheet in subsets.items()}
        begin(folder, {"about": dict(self.about), "model": self.model, "rows": rows}, keep="out")
        for name, sheet in subsets.items():
            write_subset(name, sheet, folder)
        write_json(folder / "run.json", self._config(folder, subsets))
        python = str(program.with_name("python"))
        run_program([python, "-c", _RUN, "run.json"], folder, {"EVALSCOPE_API_KEY": self.key or "none"})
        return {sheet.task.name: sheet.result(list(_findings(folder, name, sheet))) for name, sheet in subsets.items()}

    def _config(self, folder: Path, subsets: Mapping[str, Sheet]) -> dict[str, Any]:
        first = next(iter(subsets.values()))
        stop = {"stop_seqs": list(first.stop)} if first.stop else {}
        sets = {
            kind: {
                "local_path": str(folder / kind),
                "subset_list": [name for name, sheet in subsets.items() if _kind(sheet) == kind],
                "few_shot_num": 0,
            }
            for kind in dict.fromkeys(map(_kind, subsets.values()))
        }
        for kind, form in _FORMS.items():
            sets.get(kind, {}).update(form)
        before = {"use_cache": str(folder / "out"), "rerun_review": True} if (folder / "out").is_dir() else {}
        return {
            "model": self.model,
            "api_url": f"{self.url}/v1",
            "eval_type": "openai_api",
            "eval_batch_size": self.batch_size,
            "generation_config": {"max_tokens": first.max_tokens, "temperature": 0.0, **stop},
            "work_dir": str(folder / "out"),
            "no_timestamp": True,
            "ignore_errors": True,
            "datasets": list(sets),
            "dataset_args": sets,
            **before,
        }


def evalscope_sheet(unit: Unit, settings: Settings) -> Sheet:
    """A task as EvalScope can put it: as chats, choices listed in its way and named by letter.

    Shots of choices stand in front of the question; elsewhere they are turns.

    Args:
        unit: choices not arranged; what they become is a task of ours too, which we can ask in the same words.
        settings: as the unit was made with.

    Raises:
        UserError: see `sheet_of`; or there are more choices than EvalScope has letters.
    """
    task, plain = unit.task, sheet_of(unit, replace(settings, chat=True))
    if task.kind != "choice":
        return plain
    most = max(len(item.choices) for item in task.items)
    if most > len(_LETTERS):
        what = f"has {most} choices, and EvalScope takes {len(_LETTERS)}"
        raise UserError(what, where=task.name, mend="leave the task out")
    questions = tuple(_listed(*one) for one in zip(task.items, unit.shots, strict=True))
    items = tuple(question.item for question in questions)
    asked = replace(task, kind="generation", scoring="generate", items=items, metrics=("choice",))
    return replace(plain, task=asked, questions=questions)


def _listed(item: Item, shots: Sequence[Item]) -> Question:
    """The item with its whole prompt as its chat, and what EvalScope makes that of."""
    stem = "\n\n".join([*map(_example, shots), _stem(item)])
    told = ({"role": "user", "content": _TEMPLATE.format(question=stem, choices=_list_of(item))},)
    letters = tuple(_LETTERS[i] for i in item.gold)
    fields = {**item.fields, "letters": _LETTERS[: len(item.choices)]}
    asked = replace(item, choices=(), gold=(), references=letters, messages=told, fields=fields)
    return Question(asked, told, (stem, *_bare(item)))


def write_subset(name: str, sheet: Sheet, folder: Path) -> None:
    """Writes a sheet as one file of `general_mcq` or `general_qa`, a row an item."""
    kind = _kind(sheet)
    file = f"{name}_val.jsonl" if kind == _MCQ else f"{name}.jsonl"
    (folder / kind).mkdir(parents=True, exist_ok=True)
    write_json_lines(folder / kind / file, [_row(question) for question in sheet.questions])


def _bare(item: Item) -> tuple[str, ...]:
    return tuple(choice.strip() for choice in item.choices)


def _list_of(item: Item) -> str:
    """Choices as EvalScope lists them."""
    return "\n".join(f"{letter}) {choice}" for letter, choice in zip(_LETTERS, _bare(item), strict=False))


def _example(item: Item) -> str:
    return f"{_stem(item)}\n{_list_of(item)}\nANSWER: {_LETTERS[item.gold[0]]}"


def _stem(item: Item) -> str:
    return item.stem or item.question.strip()


def _row(question: Question) -> dict[str, Any]:
    right = question.item.references[0] if question.item.references else ""
    if question.listed:
        stem, *choices = question.listed
        return {"question": stem, **dict(zip(_LETTERS, choices, strict=False)), "answer": right}
    if question.said is not None:
        return {"query": question.said, "response": right}
    assert not isinstance(question.prompt, str)
    return {"messages": [dict(message) for message in question.prompt], "response": right}


def _findings(folder: Path, name: str, sheet: Sheet) -> Iterator[Finding]:
    kind = _kind(sheet)
    for file in (folder / "out" / "reviews").rglob(f"{kind}_{name}.jsonl"):
        for row in read_json_lines(file):
            yield _finding(row, sheet.questions[row["index"]])


def _finding(row: Mapping[str, Any], question: Question) -> Finding:
    score = row["sample_score"]["score"]
    if score.get("status", "success") != "success":
        return Finding(question.item.id, missing=f"EvalScope: {score['status']}")
    scores = {_name(metric): float(value) for metric, value in score["value"].items()}
    taken = score["extracted_prediction"] or ""
    return Finding(question.item.id, taken, scores, text=score["prediction"] or "")


def _name(metric: str) -> str:
    """Its name for a metric, as we write names: `acc`, `rouge_l_f`."""
    return "acc" if metric == "accuracy" else metric.lower().replace("-", "_")


def _kind(sheet: Sheet) -> str:
    return _MCQ if sheet.questions[0].listed else _QA


def _ending(sheet: Sheet) -> tuple[int, tuple[str, ...]]:
    return sheet.max_tokens, sheet.stop
