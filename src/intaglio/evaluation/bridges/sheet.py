"""A task as it is put to a model, down to the last character: what every evaluator is given alike."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from intaglio.errors import UserError
from intaglio.evaluation.choices import bare_choices
from intaglio.evaluation.framing import framed
from intaglio.evaluation.results import Missing, Outcome, TaskResult
from intaglio.evaluation.runs import Settings, Unit
from intaglio.evaluation.subjects.subject import Prompt
from intaglio.evaluation.tasks.item import Item, Task

__all__ = ["Finding", "Question", "Sheet", "sheet_of"]


@dataclass(frozen=True)
class Question:
    """One item, ready to be asked.

    Attributes:
        item: what is asked, arranged.
        prompt: everything before the answer, shots included.
        listed: of choices that are named by letter: the question without the list, and the choices; empty elsewhere.
    """

    item: Item
    prompt: Prompt
    listed: tuple[str, ...] = ()

    @property
    def said(self) -> str | None:
        """The prompt as one text: what is continued, or the only thing that a chat's user says; None where there is
        more."""
        if isinstance(self.prompt, str):
            return self.prompt
        return str(self.prompt[0]["content"]) if len(self.prompt) == 1 else None


@dataclass(frozen=True)
class Sheet:
    """One task, ready to be asked.

    Attributes:
        task: arranged (see `framing`).
        questions: one for each item.
        max_tokens: of an answer.
        stop: texts that end one.
    """

    task: Task
    questions: tuple[Question, ...]
    max_tokens: int = 64
    stop: tuple[str, ...] = ()

    @property
    def chat(self) -> bool:
        """Whether prompts are chats."""
        return any(not isinstance(question.prompt, str) for question in self.questions)

    def result(self, found: Sequence["Finding"]) -> TaskResult:
        """All of the task in our form; items that nothing was found for count as unanswered."""
        by_id = {one.id: one for one in found}
        pairs = [(question, by_id.get(question.item.id)) for question in self.questions]
        answered = tuple(_outcome(self.task, question, one) for question, one in pairs if one and not one.missing)
        missing = tuple(_missing(question.item, one) for question, one in pairs if one is None or one.missing)
        return TaskResult(self.task.kind, self.task.hash, self.task.source, answered, self.task.bad_rows, missing)


@dataclass(frozen=True)
class Finding:
    """What another evaluator has found for one item.

    Attributes:
        id: of the item.
        prediction: what it took for the answer.
        scores: its own.
        nats: ln p of each choice.
        text: what was written.
        missing: why there is no answer; empty: there is one.
    """

    id: str
    prediction: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    nats: tuple[float, ...] = ()
    text: str = ""
    missing: str = ""


def sheet_of(unit: Unit, settings: Settings) -> Sheet:
    """The task as our own evaluation puts it.

    Raises:
        UserError: it runs programs, has no items, or several answers are wanted to each.
    """
    task = unit.task
    if task.kind == "code":
        mend = "leave --with out: our own evaluation runs programs in a sandbox"
        raise UserError("would run generated programs outside any sandbox", where=task.name, mend=mend)
    if not task.items:
        raise UserError("has no items", where=task.name)
    framings = zip(task.items, unit.shots, strict=True)
    questions = [Question(item, framed(task, item, shots, chat=settings.chat)) for item, shots in framings]
    stop = () if settings.chat else task.stop
    return Sheet(task, tuple(questions), settings.max_tokens or task.max_tokens, stop)


def _outcome(task: Task, question: Question, found: Finding) -> Outcome:
    item, prompt = question.item, question.prompt
    return Outcome(
        task=task.name,
        id=item.id,
        category=item.category,
        where=item.where,
        prompt=prompt if isinstance(prompt, str) else list(prompt),
        prediction=found.prediction,
        right=[bare_choices(item)[i] for i in item.gold] if item.choices else list(item.references),
        scores=found.scores,
        nats=found.nats,
        text=found.text,
    )


def _missing(item: Item, found: Finding | None) -> Missing:
    return Missing(item.id, item.where, found.missing if found else "the evaluator says nothing of it")
