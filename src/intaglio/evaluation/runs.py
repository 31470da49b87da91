"""Tasks put to a subject, batch after batch; what is answered is on disk at once, so that a run can be gone on with."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.evaluation.answers import Scored, check_metrics, score_answers, whole_scores
from intaglio.evaluation.choices import choose
from intaglio.evaluation.code.pass_at_k import asked_ks
from intaglio.evaluation.framing import Shots, arranged, framed, subset
from intaglio.evaluation.journal import Journal
from intaglio.evaluation.results import RESULTS, Missing, Outcome, Results, TaskResult, read_results, write_results
from intaglio.evaluation.subjects.identity import versions
from intaglio.evaluation.subjects.subject import Answer, Prompt, Subject, Unanswered
from intaglio.evaluation.tasks.item import Item, Scoring, Task
from intaglio.fetch import claimed

__all__ = ["Judge", "Settings", "Unit", "evaluate", "refuse_idle", "require_judge", "run_name", "units_of"]

JOURNAL: Final = "journal.jsonl"
MARK: Final = "@"
"""Parts a task's name from the number of its shots, where there are several numbers."""

Judge = Callable[[Task, Mapping[str, Sequence[str]]], Mapping[str, Scored]]
"""Scores programs: of a task's items, by id, the samples."""

Watch = Callable[[str, int, int], None]
"""Told of a unit how many of its items are done, and how many there are."""


@dataclass(frozen=True)
class Settings:
    """What decides the scores besides the subject and the tasks.

    Attributes:
        shots: worked examples; several numbers make a curve.
        limit: items of a task at most, drawn by `seed`.
        seed: of all draws.
        chat: whether questions are put as chats.
        scoring: of choices; None: as the task is published.
        max_tokens: of an answer; None: as the task has it.
        temperature: of answers; 0: always the likeliest token.
        samples: answers to each item, for programs.
        metrics: of written answers, in place of the task's.
    """

    shots: tuple[int, ...] = (0,)
    limit: int | None = None
    seed: int = 0
    chat: bool = False
    scoring: Scoring | None = None
    max_tokens: int | None = None
    temperature: float = 0.0
    samples: int = 1
    metrics: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unit:
    """A task with a number of shots.

    Attributes:
        name: the task's, with the shots behind it where there are several numbers.
        task: arranged, only the items that are asked.
        shots: for each item.
    """

    name: str
    task: Task
    shots: tuple[tuple[Item, ...], ...]


def units_of(tasks: Sequence[Task], settings: Settings) -> list[Unit]:
    """What is asked, all choices made: no model is needed yet.

    Raises:
        UserError: more shots than examples, more choices than letters, no such metric, or an option without effect.
    """
    if settings.samples > 1 and not settings.temperature:
        raise UserError("all samples would be the same", where="--samples", mend="take a --temperature above 0")
    if len(set(settings.shots)) < len(settings.shots):
        raise UserError("a number is given twice", where="--shots")
    units = []
    for task in tasks:
        chosen = _with_metrics(subset(arranged(task, settings.scoring), settings.limit, settings.seed), settings)
        source = Shots(chosen, settings.seed)
        for number in settings.shots:
            name = task.name if len(settings.shots) == 1 else f"{task.name}{MARK}{number}"
            shots = tuple(tuple(source.of(item, number)) for item in chosen.items)
            units.append(Unit(name, replace(chosen, name=name), shots))
    return units


def refuse_idle(units: Sequence[Unit], settings: Settings) -> None:
    """Refuses settings that change nothing about any of the units.

    Raises:
        UserError: there is one; says which.
    """
    kinds = {unit.task.kind for unit in units}
    written = not kinds <= {"choice"}
    chosen = any(unit.task.scoring == "generate" for unit in units) or "choice" in kinds
    idle = {
        "--scoring": settings.scoring and not chosen,
        "--metrics": settings.metrics and not written,
        "--max-tokens": settings.max_tokens and not written,
        "--temperature": settings.temperature and not written,
        "--samples": settings.samples > 1 and "code" not in kinds,
    }
    for name, is_idle in idle.items():
        if is_idle:
            raise UserError("has no effect on any of these tasks", where=name)


def require_judge(units: Sequence[Unit], judge: Judge | None) -> None:
    """Refuses programs where there is nobody to run them.

    Raises:
        UserError: a unit's answers are programs.
    """
    for unit in units:
        if unit.task.kind == "code" and judge is None:
            raise UserError("its answers are programs, which are run", where=unit.name, mend="give --allow-code")


def evaluate(
    units: Sequence[Unit],
    subject: Subject,
    settings: Settings,
    folder: Path | None = None,
    *,
    batch: int = 16,
    judge: Judge | None = None,
    watch: Watch = lambda name, done, total: None,
) -> Results:
    """Asks everything that is not answered yet, and writes the results when all is done.

    Args:
        units: see `units_of`.
        subject: who is asked.
        settings: as `units_of` had them.
        folder: where the run lies; None: nowhere.
        batch: items at a time.
        judge: of programs; None: none are run.
        watch: told how far it is.

    Raises:
        UserError: the folder holds another evaluation, another process works there, or programs may not be run.
        SubjectGoneError: there is nobody to ask any more; the same call goes on where it ended.
    """
    require_judge(units, judge)
    with _book(folder, subject, units, settings) as book:
        if book.finished is not None:
            return book.finished
        tasks = {unit.name: _run(unit, subject, settings, book, batch, judge, watch) for unit in units}
        results = Results(book.head["model"], book.head["settings"], versions(), tasks)
        book.close(results)
        return results


def run_name(subject: Subject, units: Sequence[Unit], settings: Settings) -> str:
    """A name for the run's folder that is another with whatever decides its scores."""
    told = json.dumps(_head(subject, units, settings), sort_keys=True)
    return f"eval-{subject.name.replace('/', '-')}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


class _Book:
    """What is known of a run: in memory, and in a folder if there is one. What was not answered is asked again."""

    def __init__(self, head: dict[str, Any], folder: Path | None) -> None:
        self.head, self._folder = head, folder
        self._journal: Journal | None = None
        self._known: dict[tuple[str, str], Outcome] = {}
        written = _written(folder, head) if folder else None
        self.finished = None if written and any(one.unanswered for one in written.tasks.values()) else written
        if folder and self.finished is None:
            self._journal = Journal(folder / JOURNAL, head)
            before = [one for result in written.tasks.values() for one in result.outcomes] if written else []
            for outcome in [*before, *(Outcome(**entry) for entry in self._journal.entries)]:
                self._known[outcome.task, outcome.id] = outcome

    def get(self, unit: str, item: str) -> Outcome | None:
        """What became of an item, as far as it is known."""
        return self._known.get((unit, item))

    def add(self, outcome: Outcome) -> None:
        """Enters it."""
        if self._journal is not None:
            self._journal.add(asdict(outcome))
        self._known[outcome.task, outcome.id] = outcome

    def close(self, results: Results) -> None:
        """Writes the results, if there is a folder."""
        if self._folder is not None and self._journal is not None:
            write_results(self._folder, results)
            self._journal.remove()


@contextmanager
def _book(folder: Path | None, subject: Subject, units: Sequence[Unit], settings: Settings) -> Iterator[_Book]:
    head = _head(subject, units, settings)
    if folder is None:
        yield _Book(head, None)
        return
    with claimed(folder / ".lock"):
        yield _Book(head, folder)


def _head(subject: Subject, units: Sequence[Unit], settings: Settings) -> dict[str, Any]:
    """What decides the scores, as JSON has it."""
    tasks = {unit.name: unit.task.hash for unit in units}
    head = {"model": subject.identity(), "settings": asdict(settings), "tasks": tasks}
    told: dict[str, Any] = json.loads(json.dumps(head))
    return told


def _written(folder: Path, head: Mapping[str, Any]) -> Results | None:
    """The results in the folder, where they are those of this very run.

    Raises:
        UserError: they are of another.
    """
    if not (folder / RESULTS).exists():
        return None
    found = read_results(folder)
    tasks = {name: result.hash for name, result in found.tasks.items()}
    for key, value in {"model": found.model, "settings": found.settings, "tasks": tasks}.items():
        if value != head[key]:
            raise UserError(f"holds an evaluation with other {key}", where=str(folder), mend="give another --out")
    return found


def _run(
    unit: Unit,
    subject: Subject,
    settings: Settings,
    book: _Book,
    batch: int,
    judge: Judge | None,
    watch: Watch,
) -> TaskResult:
    task, missing = unit.task, dict[str, Missing]()
    left = [place for place, item in enumerate(task.items) if book.get(unit.name, item.id) is None]
    for start in range(0, len(left), batch):
        watch(unit.name, len(task.items) - len(left) + start, len(task.items))
        places = left[start : start + batch]
        items = [task.items[place] for place in places]
        shots = [unit.shots[place] for place in places]
        prompts = [framed(task, *one, chat=settings.chat) for one in zip(items, shots, strict=True)]
        for found in _asked(task, items, prompts, subject, settings, judge):
            if isinstance(found, Outcome):
                book.add(found)
            else:
                missing[found.id] = found
    watch(unit.name, len(task.items), len(task.items))
    known = [book.get(unit.name, item.id) for item in task.items]
    outcomes = tuple(outcome for outcome in known if outcome is not None)
    whole = whole_scores(task, {one.id: one.text for one in outcomes}) if task.kind == "generation" else {}
    return TaskResult(task.kind, task.hash, task.source, outcomes, task.bad_rows, tuple(missing.values()), whole)


def _asked(
    task: Task,
    items: Sequence[Item],
    prompts: Sequence[Prompt],
    subject: Subject,
    settings: Settings,
    judge: Judge | None,
) -> list[Outcome | Missing]:
    if task.kind == "choice":
        return choose(task, items, prompts, subject)
    samples = settings.samples if task.kind == "code" else 1
    rows = [subject.answers(prompts, _params(task, settings, number)) for number in range(samples)]
    answers = {item.id: [row[place] for row in rows] for place, item in enumerate(items)}
    texts = {name: [one.text for one in said if isinstance(one, Answer)] for name, said in answers.items()}
    whole = {name: said for name, said in texts.items() if len(said) == samples}
    scored = _scored(replace(task, items=tuple(items)), whole, judge)
    return [
        _outcome(task, item, prompt, whole[item.id], scored[item.id]) if item.id in whole else _missing(item, answers)
        for item, prompt in zip(items, prompts, strict=True)
    ]


def _scored(task: Task, texts: Mapping[str, Sequence[str]], judge: Judge | None) -> Mapping[str, Scored]:
    if task.kind == "code":
        assert judge is not None, "checked before anybody was asked"
        return judge(task, texts)
    return score_answers(task, {name: said[0] for name, said in texts.items()})


def _params(task: Task, settings: Settings, number: int) -> SamplingParams:
    """Of one sample; each has its own seed."""
    chosen = settings.seed + number if settings.temperature else None
    return SamplingParams(
        temperature=settings.temperature,
        max_tokens=settings.max_tokens or task.max_tokens,
        stop=() if settings.chat else task.stop,
        seed=chosen,
    )


def _outcome(task: Task, item: Item, prompt: Prompt, texts: Sequence[str], scored: Scored) -> Outcome:
    return Outcome(
        task=task.name,
        id=item.id,
        category=item.category,
        where=item.where,
        prompt=prompt if isinstance(prompt, str) else [dict(message) for message in prompt],
        prediction=scored.prediction,
        right=list(item.right),
        scores=_named(scored) if task.scoring == "generate" else dict(scored.scores),
        text=texts[0] if len(texts) == 1 else "\n\n".join(f"# sample {i}\n{text}" for i, text in enumerate(texts, 1)),
    )


def _named(scored: Scored) -> dict[str, float]:
    """Of a choice that was written: `acc` as elsewhere, and `valid`: whether a choice was named at all."""
    return {"acc": scored.scores["choice"], "valid": float(bool(scored.prediction))}


def _missing(item: Item, answers: Mapping[str, Sequence[Answer | Unanswered]]) -> Missing:
    reason = next(one.reason for one in answers[item.id] if isinstance(one, Unanswered))
    return Missing(item.id, item.where, reason)


def _with_metrics(task: Task, settings: Settings) -> Task:
    if not settings.metrics or task.kind == "choice" or task.scoring == "generate":
        return task
    if task.kind == "generation":
        check_metrics(settings.metrics)
    changed = replace(task, metrics=settings.metrics)
    if task.kind == "code" and (most := max(asked_ks(changed))) > settings.samples:
        raise UserError(f"pass@{most} needs {most} samples of each answer", where="--metrics", mend="give --samples")
    return changed
