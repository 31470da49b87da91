"""The results of an evaluation on disk: one file with the numbers and what a repeat needs, one with a line an item.

`results.json`:

    {"format": "intaglio-eval/1", "model": {...}, "settings": {...}, "versions": {...},
     "tasks": {name: {"kind", "hash", "source", "items": n, "metrics": {metric: {"mean", "low", "high", "n"}},
                      "categories": {category: {metric: {...}}}, "bad_rows": [{"where", "why"}],
                      "unanswered": [{"id", "where", "reason"}]}}}

`items.jsonl`: {"task", "id", "category", "where", "prompt", "prediction", "right", "scores": {metric: float},
"nats": [...], "num_tokens": [...], "text"}
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from intaglio.errors import UserError
from intaglio.evaluation.intervals import bootstrap_mean
from intaglio.evaluation.tasks.item import BadRow
from intaglio.files import read_json, read_json_lines, write_json, write_json_lines

__all__ = [
    "FORMAT",
    "ITEMS",
    "RESULTS",
    "Missing",
    "Outcome",
    "Results",
    "Summary",
    "TaskResult",
    "read_results",
    "summarise",
    "write_results",
]

FORMAT: Final = "intaglio-eval/1"
RESULTS: Final = "results.json"
ITEMS: Final = "items.jsonl"


@dataclass(frozen=True)
class Outcome:
    """What became of one item: a line of `items.jsonl`.

    Attributes:
        task, id, category, where: the item's.
        prompt: the text before the answer, shots included, or the messages.
        prediction: what was taken for the answer; empty: nothing was found.
        right: the right answers.
        scores: metric -> value; they are averaged.
        nats: ln p of each choice.
        num_tokens: of each choice.
        text: what was written.
    """

    task: str
    id: str
    category: str
    where: str
    prompt: Any
    prediction: str
    right: Sequence[str]
    scores: Mapping[str, float]
    nats: Sequence[float] = field(default_factory=list)
    num_tokens: Sequence[int] = field(default_factory=list)
    text: str = ""


@dataclass(frozen=True)
class Missing:
    """An item without an answer, and why; it is in no mean."""

    id: str
    where: str
    reason: str


@dataclass(frozen=True)
class Summary:
    """A metric over some items: the mean, its 95 % interval, and how many items."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True)
class TaskResult:
    """All of one task.

    Attributes:
        kind, hash, source: the task's.
        outcomes: of the items that were answered.
        bad_rows: rows that could not be read.
        unanswered: items without an answer.
        whole: metrics that are no means over items (BLEU, perplexity).
    """

    kind: str
    hash: str
    source: str
    outcomes: tuple[Outcome, ...]
    bad_rows: tuple[BadRow, ...] = ()
    unanswered: tuple[Missing, ...] = ()
    whole: Mapping[str, Summary] = field(default_factory=dict)

    @property
    def metrics(self) -> dict[str, Summary]:
        """Over all items that have the metric."""
        return {**summarise(self.outcomes), **self.whole}

    @property
    def categories(self) -> dict[str, dict[str, Summary]]:
        """The same for each category, in order of appearance; none where the items have none."""
        names = dict.fromkeys(outcome.category for outcome in self.outcomes if outcome.category)
        return {name: summarise([one for one in self.outcomes if one.category == name]) for name in names}


@dataclass(frozen=True)
class Results:
    """A whole run.

    Attributes:
        model: see `Subject.identity`.
        settings: all that was asked for: shots, limit, seed, scoring, and so on.
        versions: of the packages that had a say.
        tasks: name -> result.
    """

    model: Mapping[str, Any]
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    tasks: Mapping[str, TaskResult]

    def as_json(self) -> dict[str, Any]:
        """What `results.json` holds."""
        tasks = {name: _task_json(result) for name, result in self.tasks.items()}
        head = {"format": FORMAT, "model": dict(self.model), "settings": dict(self.settings)}
        return {**head, "versions": dict(self.versions), "tasks": tasks}


def summarise(outcomes: Iterable[Outcome]) -> dict[str, Summary]:
    """The mean of each metric over the items that have it, with its bootstrap interval."""
    values: dict[str, list[float]] = {}
    for outcome in outcomes:
        for metric, value in outcome.scores.items():
            values.setdefault(metric, []).append(value)
    return {metric: Summary(*bootstrap_mean(found), len(found)) for metric, found in values.items()}


def write_results(folder: Path, results: Results) -> None:
    """Writes both files into `folder`, each whole; `results.json` last, so that where it is, all is."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json_lines(folder / ITEMS, [asdict(one) for result in results.tasks.values() for one in result.outcomes])
    write_json(folder / RESULTS, results.as_json())


def read_results(folder: Path) -> Results:
    """The results in `folder`, or beside the `results.json` that is named.

    Raises:
        UserError: there are none, or not of this format.
    """
    path = folder / RESULTS if folder.is_dir() else folder
    told = read_json(path)
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise UserError(f"holds no results of the format {FORMAT}", where=str(path))
    lines = read_json_lines(path.parent / ITEMS)
    try:
        outcomes = [Outcome(**line) for line in lines]
        tasks = {name: _task_result(name, one, outcomes) for name, one in told["tasks"].items()}
        return Results(told["model"], told["settings"], told["versions"], tasks)
    except (KeyError, TypeError) as error:
        raise UserError(f"these results are damaged ({error})", where=str(path)) from error


def _task_json(result: TaskResult) -> dict[str, Any]:
    return {
        "kind": result.kind,
        "hash": result.hash,
        "source": result.source,
        "items": len(result.outcomes),
        "metrics": {metric: asdict(one) for metric, one in result.metrics.items()},
        "categories": {
            name: {metric: asdict(one) for metric, one in found.items()} for name, found in result.categories.items()
        },
        "bad_rows": [asdict(row) for row in result.bad_rows],
        "unanswered": [asdict(one) for one in result.unanswered],
    }


def _task_result(name: str, told: Mapping[str, Any], outcomes: Sequence[Outcome]) -> TaskResult:
    own = tuple(one for one in outcomes if one.task == name)
    means = set(summarise(own))
    whole = {metric: Summary(**one) for metric, one in told["metrics"].items() if metric not in means}
    bad = tuple(BadRow(**row) for row in told["bad_rows"])
    missing = tuple(Missing(**one) for one in told["unanswered"])
    return TaskResult(told["kind"], told["hash"], told["source"], own, bad, missing, whole)
