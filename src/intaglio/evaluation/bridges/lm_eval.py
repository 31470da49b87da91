"""lm-evaluation-harness on an OpenAI-style server: our tasks as its YAML and JSON lines, its samples as our results.

Prompts are written out whole, so that it adds nothing: no shots, no delimiter, no template of its own. It resumes from
the file in which it keeps answers, as long as the same is asked.
"""

import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from intaglio.errors import UserError
from intaglio.evaluation.bridges.outside import begin, find_program, run_program, version_of
from intaglio.evaluation.bridges.sheet import Finding, Question, Sheet
from intaglio.evaluation.choices import bare_choices
from intaglio.evaluation.results import TaskResult
from intaglio.files import read_json_lines, write_json, write_json_lines

__all__ = ["LmEval", "chats", "check_sheet", "completions", "findings", "first", "task_names", "write_task"]

_CHOICE_METRICS: Final = ("acc", "acc_norm", "acc_bytes")
"""The likeliest choice; the one with the most a character, and a byte, as our own evaluation has them."""
_SAME: Final = {"ignore_case": True, "ignore_punctuation": True}
_TAKEN: Final[dict[str, tuple[str, int]]] = {"choice": (r"\b([A-Z])\b", -1), "number": (r"-?\d[\d,]*(?:\.\d+)?", -1)}
"""How answers are taken out of what was written, by our metric: an expression, and which of its matches."""
_NAME: Final = re.compile(r"samples_(.+)_\d{4}-\d\d-\d\dT[\d.-]+\.jsonl")
_NOTHING: Final = "[invalid]"
"""What its regex filter says where it finds nothing."""


@dataclass(frozen=True)
class LmEval:
    """One run of `lm_eval`.

    Attributes:
        folder: for the tasks that are written, its own files and its log; absolute.
        model: its name for a kind of model, `local-completions` say.
        model_args: what that kind is told.
        batch_size: sequences in one request.
        python: see `find_program`.
        key: of the server; it is not written anywhere.
        about: all that decides the answers besides the questions: what was answered is kept while it is the same.
    """

    folder: Path
    model: str
    model_args: Mapping[str, Any]
    batch_size: int = 8
    python: Path | None = None
    key: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def run(self, sheets: Sequence[Sheet]) -> tuple[dict[str, TaskResult], dict[str, str]]:
        """What it finds for each task, by name, and the versions that had a say.

        Raises:
            UserError: it is not installed, or has no form for a task.
            OutsideError: it failed.
        """
        for sheet in sheets:
            check_sheet(sheet)
        names = task_names(sheets)
        rows = {name: _rows(sheet) for name, sheet in names.items()}
        self.begin({"rows": rows})
        for name, sheet in names.items():
            write_task(name, sheet, self.folder / "tasks")
        chat = {"apply_chat_template": True} if self.model.endswith("chat-completions") else {}
        cache = {"HF_DATASETS_CACHE": str(self.folder / "cache")}  # of rows that nobody reads again
        versions = self.ask(list(names), {"include_path": str(self.folder / "tasks"), **chat}, cache)
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        samples = dict(self.samples())
        found = {sheet.task.name: sheet.result(findings(samples[name], sheet)) for name, sheet in names.items()}
        return found, versions

    def begin(self, asked: Mapping[str, Any]) -> None:
        """Empties the folder; what was answered before stays only if the same is asked of the same."""
        begin(self.folder, {"about": {**self.about, "model": self.model}, **asked}, keep="answers_rank0.db")

    def ask(self, names: Sequence[str], more: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
        """Runs it on tasks of its own form; the versions that had a say.

        Args:
            names: of the tasks.
            more: of its configuration.
            environment: of its process, beside ours.

        Raises:
            UserError: it is not installed.
            OutsideError: it failed.
        """
        program, config = find_program("lm_eval", self.python), self.folder / "run.yaml"
        write_json(config, {**self._config(names), **more})
        secret = {"OPENAI_API_KEY": self.key or "none"}
        run_program([str(program), "run", "--config", str(config)], self.folder, {**secret, **environment})
        return {name: version_of(program, name) for name in ("lm_eval", "transformers")}

    def _config(self, names: Sequence[str]) -> dict[str, Any]:
        return {
            "model": self.model,
            "model_args": dict(self.model_args),
            "tasks": list(names),
            "output_path": str(self.folder / "out"),
            "use_cache": str(self.folder / "answers"),
            "batch_size": self.batch_size,
            "log_samples": True,
        }

    def samples(self) -> Iterator[tuple[str, list[Any]]]:
        """Its findings, an object an item, by the name of the task."""
        for file in sorted((self.folder / "out").rglob("samples_*.jsonl")):
            found = _NAME.fullmatch(file.name)
            assert found, file.name
            yield found[1], read_json_lines(file)


def completions(url: str, name: str, tokenizer: Path | None, *, bos: bool, max_length: int) -> dict[str, Any]:
    """What `local-completions` is told.

    Args:
        url: of the server, without `/v1`.
        name: of the model there.
        tokenizer: a directory that transformers opens; None: the server's `/tokenize` is asked.
        bos: whether the tokenizer puts a BOS before every text, as the model was trained with.
        max_length: tokens of prompt and answer at most.
    """
    known = {"tokenizer_backend": "remote"}
    if tokenizer is not None:
        known = {"tokenizer_backend": "huggingface", "tokenizer": str(tokenizer)}
    asked = {"model": name, "base_url": f"{url}/v1/completions", "num_concurrent": 1, "max_retries": 8}
    return {**asked, **known, "add_bos_token": bos, "max_length": max_length}


def chats(url: str, name: str, concurrency: int) -> dict[str, Any]:
    """What `local-chat-completions` is told; the server renders and counts."""
    asked = {"model": name, "base_url": f"{url}/v1/chat/completions", "num_concurrent": concurrency, "max_retries": 8}
    return {**asked, "tokenizer_backend": None}


def task_names(sheets: Sequence[Sheet]) -> dict[str, Sheet]:
    """The sheets by names that none of its own tasks has."""
    return {f"intaglio_{i}_{re.sub(r'[^A-Za-z0-9]+', '_', one.task.name)}": one for i, one in enumerate(sheets)}


def findings(samples: Iterable[Mapping[str, Any]], sheet: Sheet) -> list[Finding]:
    """What its samples of a task say."""
    return [_chosen(row) if sheet.task.kind == "choice" else _written(row) for row in samples]


def write_task(name: str, sheet: Sheet, folder: Path) -> None:
    """Writes `NAME.yaml` and `NAME.jsonl`; fields are named there, not templates, so that no text is read as Jinja.

    Args:
        name: of the task there.
        sheet: what `check_sheet` takes.
        folder: of both files.
    """
    rows = folder / f"{name}.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    write_json_lines(rows, _rows(sheet))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(rows)}}}
    asked = {"test_split": "test", "num_fewshot": 0, "target_delimiter": _parting(sheet), "doc_to_text": "prompt"}
    form = _choice() if sheet.task.kind == "choice" else _generation(sheet)
    write_json(folder / f"{name}.yaml", {"task": name, **data, **asked, **form})


def check_sheet(sheet: Sheet) -> None:
    """Whether lm-eval has a form for it.

    Raises:
        UserError: it has none.
    """
    where = sheet.task.name
    if sheet.chat and sheet.task.kind == "choice":
        raise UserError("lm-eval has no likelihoods in a chat", where=where, mend="leave --chat out")
    if any(question.said is None for question in sheet.questions):
        raise UserError(
            "lm-eval asks chats of one message only", where=where, mend="take --shots 0, or leave --chat out"
        )


def _parting(sheet: Sheet) -> str:
    """What stands between question and choice, which `acc_norm` does not count; nothing where that is not one blank
    everywhere."""
    items = [question.item for question in sheet.questions]
    parted = all(item.choices == tuple(f" {choice}" for choice in bare_choices(item)) for item in items)
    return " " if parted and sheet.task.kind == "choice" else ""


def _row(question: Question, parting: str) -> dict[str, Any]:
    """References are a literal in a string: pyarrow would take dates among them for times."""
    item, known = question.item, {"id": f"item {question.item.id}", "prompt": question.said}
    if item.choices:
        choices = [choice.removeprefix(parting) for choice in item.choices]
        return {**known, "choices": choices, "gold": list(item.gold)}
    return {**known, "references": repr(list(item.references))}


def _rows(sheet: Sheet) -> list[dict[str, Any]]:
    return [_row(question, _parting(sheet)) for question in sheet.questions]


def _choice() -> dict[str, Any]:
    metrics = [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in _CHOICE_METRICS]
    return {
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "doc_to_target": "gold",
        "metric_list": metrics,
    }


def _generation(sheet: Sheet) -> dict[str, Any]:
    params = {"until": list(sheet.stop), "max_gen_toks": sheet.max_tokens, "do_sample": False, "temperature": 0.0}
    metric = {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True, **_SAME}
    target = {"doc_to_target": "{{references}}", "metric_list": [metric]}
    taken = [filter for name, filter in _filters() if name in sheet.task.metrics[:1]]
    filters = {"filter_list": taken} if taken else {}
    return {"output_type": "generate_until", "generation_kwargs": params, **target, **filters}


def _filters() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, (pattern, which) in _TAKEN.items():
        steps = [
            {"function": "regex", "regex_pattern": pattern, "group_select": which},
            {"function": "take_first"},
        ]
        yield name, {"name": name, "filter": steps}


def _id(row: Mapping[str, Any]) -> str:
    return str(row["doc"]["id"]).removeprefix("item ")


def _chosen(row: Mapping[str, Any]) -> Finding:
    """`resps` holds, for each choice, its log-likelihood and whether it was what greedy decoding says, as texts."""
    nats = tuple(float(first(answer)) for answer in row["resps"])
    if not all(map(math.isfinite, nats)):
        return Finding(_id(row), missing="no finite log-likelihood")
    best = max(range(len(nats)), key=nats.__getitem__)
    scores = {metric: float(row[metric]) for metric in _CHOICE_METRICS}
    return Finding(_id(row), row["doc"]["choices"][best].strip(), scores, nats)


def _written(row: Mapping[str, Any]) -> Finding:
    text, taken = str(first(row["resps"])), str(first(row["filtered_resps"]))
    found = "" if taken == _NOTHING else taken.strip()
    return Finding(_id(row), found, {"exact_match": float(row["exact_match"])}, text=text)


def first(value: Any) -> Any:
    """What lies in lists in lists."""
    while isinstance(value, list | tuple):
        value = value[0]
    return value
