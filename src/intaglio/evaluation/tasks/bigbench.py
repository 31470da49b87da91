"""BIG-bench's JSON tasks (Srivastava et al. 2022, arXiv 2206.04615) as they lie in the package, canary and all.

A text is laid out as BIG-bench does: `task_prefix`, then for each example `example_input_prefix` (`\\nQ: `), the input,
`example_output_prefix` (`\\nA: `) and the answer. The choices are not listed in front of the answer unless that is
asked for: then as BIG-bench lists them, in an order drawn from the input.

Right are the choices with the highest of the `target_scores`; of free answers, any of the targets.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from intaglio.data.datasets import original_files
from intaglio.data.datasets.readers import shuffled
from intaglio.data.readers import Row
from intaglio.evaluation.tasks.item import Item, Task
from intaglio.evaluation.tasks.rows import BadRowError, checked, choice_texts, gather, text_of
from intaglio.files import read_json

__all__ = ["bigbench_task", "pulled_bigbench"]

ROOT: Final = "benchmark_tasks/"
METRICS: Final = {"exact_str_match": "exact_match", "bleu": "bleu", "rouge": "rougeL"}
"""BIG-bench's names, and ours."""


def pulled_bigbench(
    name: str, *, listed: bool = False, say: Callable[[str], None] = lambda line: None, progress: bool = False
) -> Task:
    """The task `bigbench:NAME`, its subtasks included, pulled if need be.

    Args:
        name: with `bigbench:` in front.
        listed: whether the choices stand in front of the answer.
        say, progress: see `pull_data`.

    Raises:
        UserError: see `pull_data` and `bigbench_task`.
    """
    return bigbench_task(name, original_files(name, say=say, progress=progress), listed=listed)


def bigbench_task(name: str, files: list[Path], *, listed: bool = False) -> Task:
    """The task that these `task.json` hold; with several, each is a category.

    Raises:
        UserError: a file is no JSON, or there is nothing to ask in any of them.
    """
    tasks = [task for task in (_Layout(file, listed, len(files) > 1) for file in files) if task.rows]
    chosen = [task for task in tasks if task.has_choices]
    made = [gather(task.rows, task.item) for task in chosen or tasks]
    items = tuple(item for good, _ in made for item in good)
    metrics = dict.fromkeys(metric for task in tasks for metric in task.metrics)
    task = Task(
        name,
        "choice" if chosen else "generation",
        items,
        joint="\n",
        stop=() if chosen else ("\n",),
        metrics=() if chosen else tuple(metrics),
        source=name,
        bad_rows=tuple(row for _, bad in made for row in bad),
    )
    return checked(task)


class _Layout:
    """One `task.json`."""

    def __init__(self, file: Path, listed: bool, is_category: bool) -> None:
        told = read_json(file)
        self.task: Mapping[str, Any] = told if isinstance(told, dict) else {}
        self.name = str(file.parent).rpartition(ROOT)[2] if ROOT in str(file) else file.parent.name
        self.is_category = is_category
        self.rows = [Row(value, f"{file}#{index}") for index, value in enumerate(self.task.get("examples") or ())]
        self.listed = listed

    @property
    def has_choices(self) -> bool:
        return any(isinstance(row.value, dict) and "target_scores" in row.value for row in self.rows)

    @property
    def metrics(self) -> list[str]:
        told = self.task.get("metrics") or []
        return [METRICS[name] for name in told if name in METRICS] or ["exact_match"]

    def item(self, row: Mapping[str, Any], where: str, number: str) -> Item:
        """An example of it."""
        text = text_of(row, "input")
        before, after = (self.task.get(f"example_{one}_prefix", put) for one, put in _PREFIXES)
        asked = f"{before}{text}"
        common: dict[str, Any] = {
            "id": f"{self.name}#{number}" if self.is_category else number,
            "category": self.name.rpartition("/")[2] if self.is_category else "",
            "where": where,
            "stem": text if before == _PREFIXES[0][1] else asked.strip(),
            "intro": str(self.task.get("task_prefix", "")),
        }
        if not self.has_choices:
            return Item(question=f"{asked}{after}".rstrip(" "), **common, **_targets(row))
        scores = row.get("target_scores")
        choices = choice_texts(list(scores) if isinstance(scores, dict) else None, "target_scores")
        if self.listed:
            asked += "".join(self.task.get("choice_prefix", "\n  choice: ") + one for one in shuffled(choices, text))
        return Item(question=f"{asked}{after}", choices=choices, gold=_best(scores), **common)


_PREFIXES: Final = (("input", "\nQ: "), ("output", "\nA: "))


def _best(scores: Any) -> tuple[int, ...]:
    try:
        values = [float(value) for value in scores.values()]
    except (TypeError, ValueError) as error:
        raise BadRowError("'target_scores' are not numbers") from error
    if max(values) <= 0:
        raise BadRowError("none of the choices is right")
    return tuple(i for i, value in enumerate(values) if value == max(values))


def _targets(row: Mapping[str, Any]) -> dict[str, Any]:
    told = row.get("target")
    targets = tuple(str(one) for one in (told if isinstance(told, list) else [told]) if str(one).strip())
    if told is None or not targets:
        raise BadRowError("'target' is missing")
    return {"references": targets, "worked": f" {targets[0]}"}
