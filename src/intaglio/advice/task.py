"""A task to be measured: the user's rows on two sides, how a row is asked, and what counts as right."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from intaglio.advice.roads import ROADS
from intaglio.data.formats import detect, to_sample
from intaglio.data.readers import Row, read_rows
from intaglio.errors import UserError, nearest
from intaglio.specs import Spec, load_yaml, validate
from intaglio.text.messages import Message
from intaglio.training.batching.data import located

__all__ = ["Case", "RowsSpec", "Sides", "TaskSpec", "load_task", "read_sides"]

_MEASURED = tuple(road.name for road in ROADS if road.training != "full")


class RowsSpec(Spec):
    """Rows of one side.

    Attributes:
        path: a file, folder or glob, or the name of a data set that `intaglio pull` knows.
        rows: that are taken, drawn by the hash of what they ask; equal questions are one.
    """

    path: str
    rows: int = Field(gt=0)


class TaskSpec(Spec):
    """What is measured, and with how much effort.

    Attributes:
        model: what everything starts from: a pulled name, a directory, a GGUF file.
        train: rows that examples, training and choices may use.
        test: rows that answers are judged on; none of their questions is trained on.
        fields: for a key of a row a regular expression for its value, whose named groups become keys.
        question, answer: how a row is asked and what is right, with keys in braces; None goes by the row's format.
        instruction: stands before every question.
        documents: a folder that retrieval reads; None makes documents of the rows of both sides by `document`.
        document: what a row's document says, with keys in braces. Without any documents the solved examples of the
            train side are what retrieval finds.
        metric: exact match after `normalise`; contains: the right answer stands within; f1 over words.
        max_tokens: of an answer.
        requests: that the winner is to answer: what training costs is shared among them.
        good_enough: quality, 0 to 1, beyond which only costs count; None: what the best road has.
        roads: that are measured.
        shots: numbers of examples to choose from, on `chosen_on` rows of the train side.
        passages: numbers of passages in a prompt, to choose from in the same way.
        chosen_on: see above; those rows are no examples.
        passage_tokens: of all of them together at most.
        timed: requests that are answered one by one, so that their latency is known.
        training: keys of a recipe, for all that trains.
        seed: of every draw.
    """

    model: str = "smollm2-135m-instruct"
    train: RowsSpec
    test: RowsSpec
    fields: dict[str, str] = Field({})
    question: str | None = None
    answer: str | None = None
    instruction: str = ""
    documents: str | None = None
    document: str | None = None
    metric: Literal["exact", "contains", "f1"] = "exact"
    max_tokens: int = Field(32, gt=0)
    requests: int = Field(1000, gt=0)
    good_enough: float | None = Field(None, gt=0, le=1)
    roads: tuple[str, ...] = _MEASURED
    shots: tuple[Annotated[int, Field(gt=0)], ...] = Field((1, 3, 8), min_length=1)
    passages: tuple[Annotated[int, Field(gt=0)], ...] = Field((1, 3), min_length=1)
    chosen_on: int = Field(24, gt=0)
    passage_tokens: int = Field(600, gt=0)
    timed: int = Field(16, gt=1)
    training: dict[str, Any] = Field({})
    seed: int = 0

    @model_validator(mode="after")
    def _fits(self) -> "TaskSpec":
        known = [road.name for road in ROADS]
        unknown = [name for name in self.roads if name not in known]
        if unknown:
            raise ValueError(f"roads: there is no {unknown[0]!r}; {nearest(unknown[0], known)}")
        if (self.question is None) != (self.answer is None):
            raise ValueError("give question and answer, or neither")
        if self.documents and self.document:
            raise ValueError("give documents (a folder) or document (what a row's says), one of the two")
        if self.chosen_on + max(self.shots) > self.train.rows:
            raise ValueError("train: too few rows for the examples and for those that choose among them")
        return self


@dataclass(frozen=True)
class Case:
    """One row.

    Attributes:
        question: what is asked, as retrieval searches it.
        messages: the conversation that is to be answered, instruction and all.
        answer: what is right.
        document: what the row's own document says, where it has one.
    """

    question: str
    messages: tuple[Message, ...]
    answer: str
    document: str | None = None


@dataclass(frozen=True)
class Sides:
    """The rows of a task; no question stands on both sides."""

    train: list[Case]
    test: list[Case]


def load_task(path: Path) -> TaskSpec:
    """A task file.

    Raises:
        UserError: no such file, an unknown key (with the nearest), a value that does not fit.
    """
    task: TaskSpec = validate(TaskSpec, load_yaml(path), str(path))
    return task


def read_sides(task: TaskSpec) -> Sides:
    """The rows of both sides; the test side is drawn first.

    Raises:
        UserError: there are too few rows, or one cannot be asked.
    """
    test = _drawn(task, task.test, set())
    train = _drawn(task, task.train, {case.question for case in test})
    return Sides(train, test)


def _drawn(task: TaskSpec, side: RowsSpec, taken: set[str]) -> list[Case]:
    cases = {case.question: case for case in _cases(task, side.path)}
    left = sorted(cases.keys() - taken, key=lambda question: _place(question, task.seed))
    if len(left) < side.rows:
        raise UserError(f"{len(left)} rows with different questions, not {side.rows}", where=side.path)
    return [cases[question] for question in left[: side.rows]]


def _place(question: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}\0{question}".encode(), digest_size=16).digest()


def _cases(task: TaskSpec, path: str) -> Iterator[Case]:
    for row in read_rows(located(path)):
        case = _of_format(row) if task.question is None else _of_templates(row, task)
        if case is not None:
            yield _instructed(case, task.instruction)


def _of_format(row: Row) -> Case:
    sample = to_sample(row, detect(row))
    if sample.kind == "chat" and sample.messages[-1]["role"] == "assistant" and len(sample.messages) > 1:
        *asked, last = ({"role": m["role"], "content": m["content"]} for m in sample.messages)
        return Case(asked[-1]["content"], tuple(asked), last["content"])
    if sample.kind == "completion" and isinstance(sample.prompt, str) and isinstance(sample.completion, str):
        return Case(sample.prompt, ({"role": "user", "content": sample.prompt},), sample.completion)
    raise UserError("no question with an answer", where=row.where, mend="say question and answer in the task")


def _of_templates(row: Row, task: TaskSpec) -> Case | None:
    """The case that the task's templates make of a row; none where a pattern of `fields` does not fit it."""
    values = {"text": row.value} if isinstance(row.value, str) else dict(row.value)
    for key, pattern in task.fields.items():
        match = re.fullmatch(pattern, str(values.get(key, "")))
        if match is None:
            return None
        values |= match.groupdict()
    question, answer, document = (_filled(text, values, row) for text in (task.question, task.answer, task.document))
    assert question is not None
    assert answer is not None
    return Case(question, ({"role": "user", "content": question},), answer, document)


def _filled(template: str | None, values: Mapping[str, Any], row: Row) -> str | None:
    try:
        return None if template is None else template.format_map(values)
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        mend = f"it has {', '.join(values)}"
        raise UserError(f"{template!r} does not fit the row: {error}", where=row.where, mend=mend) from error


def _instructed(case: Case, instruction: str) -> Case:
    if not instruction:
        return case
    *before, last = case.messages
    asked: Sequence[Message] = [*before, {**last, "content": f"{instruction}\n\n{last['content']}"}]
    return Case(case.question, tuple(asked), case.answer, case.document)
