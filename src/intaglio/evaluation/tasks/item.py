"""A task as all layouts are read into it: items with their right answers, and the rows that could not be read."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from intaglio.text.messages import Message

__all__ = ["BadRow", "Item", "Kind", "Language", "Scoring", "Task"]

Kind = Literal["choice", "generation", "code"]
Language = Literal["en", "zh"]
Scoring = Literal["answer", "letter", "generate"]
"""How a choice is made: by the likelihood of the whole answer, by that of its letter, or by what is written."""


@dataclass(frozen=True)
class Item:
    """One question.

    Attributes:
        id: stable within the task.
        question: what stands before the answer, shots left out, as the task lays it out (it ends in `\\nA:`, say).
        choices: of multiple choice: the continuations, each as it is appended, its leading blank included.
        gold: which of the choices are right.
        references: of generation: the right answers.
        category: by which results are told apart too.
        where: file:line.
        fields: what a kind needs more (`entry_point` and `test` of HumanEval, say).
        stem: the question alone, without layout, for layouts that list the choices by letter.
        intro: before the shots, behind the task's own prefix: what a category begins with.
        worked: the answer as an example shows it; empty: the first right one.
        messages: a chat that is asked in place of `question`.
    """

    id: str
    question: str
    choices: tuple[str, ...] = ()
    gold: tuple[int, ...] = ()
    references: tuple[str, ...] = ()
    category: str = ""
    where: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    stem: str = ""
    intro: str = ""
    worked: str = ""
    messages: tuple[Message, ...] = ()

    @property
    def right(self) -> tuple[str, ...]:
        """The right answers as texts."""
        return tuple(self.choices[i] for i in self.gold) if self.choices else self.references


@dataclass(frozen=True)
class BadRow:
    """A row that was left out: file:line, and why."""

    where: str
    why: str


@dataclass(frozen=True)
class Task:
    """Items that are scored together.

    Attributes:
        name: as results call it.
        kind: what is scored: likelihoods of choices, texts, or programs.
        items: the questions.
        examples: shots are drawn from these, never the item itself; none: from the items.
        prefix: before the shots.
        joint: between shots.
        stop: texts that end an answer.
        max_tokens: of an answer.
        metrics: empty: those of the kind (acc and acc_norm, exact_match, pass@1).
        source: the file or the data set.
        bad_rows: left out of everything, and reported.
        scoring: of choices, where nobody says: as the task is published.
        draw: whether shots are the first of the examples, or random ones with a fixed seed.
        language: of what stands around the questions where the choices are listed.
    """

    name: str
    kind: Kind
    items: tuple[Item, ...]
    examples: tuple[Item, ...] = ()
    prefix: str = ""
    joint: str = "\n\n"
    stop: tuple[str, ...] = ()
    max_tokens: int = 64
    metrics: tuple[str, ...] = ()
    source: str = ""
    bad_rows: tuple[BadRow, ...] = ()
    scoring: Scoring = "answer"
    draw: Literal["first", "random"] = "random"
    language: Language = "en"

    @cached_property
    def hash(self) -> str:
        """SHA-256 over all that decides the scores: not where the rows were found, nor what the task is called."""
        rows = [[_facts(item) for item in items] for items in (self.items, self.examples)]
        layout = [self.kind, self.prefix, self.joint, self.stop, self.max_tokens, self.metrics, self.scoring, self.draw]
        layout.append(self.language)
        told = json.dumps([layout, rows], ensure_ascii=False, sort_keys=True, default=str)
        return hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()


def _facts(item: Item) -> list[Any]:
    asked = [item.id, item.question, item.stem, item.intro, [dict(message) for message in item.messages]]
    return [*asked, item.choices, item.gold, item.references, item.worked, item.category, dict(item.fields)]
