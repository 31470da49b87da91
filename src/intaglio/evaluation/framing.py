"""How a question is put: with worked examples in front or none, its choices listed or not, as a text or as a chat."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any, Final

from intaglio.data.turns import text_of
from intaglio.errors import UserError
from intaglio.evaluation.subjects.subject import Prompt
from intaglio.evaluation.tasks.item import Item, Language, Scoring, Task
from intaglio.text.messages import Message

__all__ = ["LETTERS", "Shots", "arranged", "framed", "subset"]

LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CUES: Final[dict[Language, str]] = {"en": "\nAnswer:", "zh": "\n答案："}
WISHES: Final[dict[Language, str]] = {
    "en": "\n\nReply with the letter of the right answer alone.",
    "zh": "\n\n请只回答正确选项的字母。",
}


def arranged(task: Task, scoring: Scoring | None) -> Task:
    """A task of choices as it is scored: its answers as they are, or its choices listed, to be named by letter.

    By `letter`, the choices are letters, as MMLU's are; by `generate`, the task becomes one of generation, whose
    metric `choice` takes the letter out of what was written. Other tasks are left alone.

    Args:
        task: as it was read.
        scoring: None: as the task is published.

    Raises:
        UserError: more choices than letters.
    """
    how = scoring or task.scoring
    if task.kind != "choice" or how == "answer":
        return replace(task, scoring=how)
    put = _lettered if how == "letter" else _asked
    items, examples = (tuple(put(item, task.language) for item in some) for some in (task.items, task.examples))
    arranged = replace(task, items=items, examples=examples, scoring=how, joint="\n\n")
    if how == "letter":
        return arranged
    return replace(arranged, kind="generation", metrics=("choice",), stop=("\n\n",))


def subset(task: Task, limit: int | None, seed: int) -> Task:
    """At most `limit` of its items, drawn by `seed`, in their order; examples stay where they come from the items."""
    if limit is None or limit >= len(task.items):
        return task
    chosen = sorted(random.Random(f"items {seed}").sample(range(len(task.items)), limit))
    return replace(task, items=tuple(task.items[i] for i in chosen), examples=task.examples or task.items)


class Shots:
    """Worked examples: of the item's own category where that has enough, and never the item itself.

    Fewer shots of one category are the first of more.

    Args:
        task: whose examples they are; where it has none, its items.
        seed: of the draws.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self._task, self._seed = task, seed
        self._all = _Pool()
        self._by_category: dict[str, _Pool] = {}
        for one in task.examples or task.items:
            for pool in (self._all, self._by_category.setdefault(one.category, _Pool())):
                pool.add(one)

    def of(self, item: Item, number: int) -> list[Item]:
        """So many for an item.

        Raises:
            UserError: there are not so many.
        """
        pools = [self._by_category.get(item.category, self._all), self._all]
        pool = next((pool for pool in pools if pool.size_without(item) >= number), None)
        if pool is None:
            what = f"{number} shots, and there are {self._all.size_without(item)} examples"
            raise UserError(what, where=self._task.name, mend="take fewer --shots")
        own = pool.place_of(item)
        order = self._in_order(own) if self._task.draw == "first" else self._at_random(item, len(pool.items), own)
        return [pool.items[place] for place in islice(order, number)]

    def _in_order(self, own: int | None) -> Iterator[int]:
        return (place for place in count() if place != own)

    def _at_random(self, item: Item, size: int, own: int | None) -> Iterator[int]:
        dice, drawn = random.Random(f"shots {self._seed} {item.id}"), {own}
        while True:
            place = dice.randrange(size)
            if place not in drawn:
                drawn.add(place)
                yield place


class _Pool:
    """Examples to draw from."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._places: dict[tuple[str, str], int] = {}

    def add(self, one: Item) -> None:
        self._places[one.id, one.stem] = len(self.items)
        self.items.append(one)

    def place_of(self, item: Item) -> int | None:
        """Where the item itself stands, if it does."""
        return self._places.get((item.id, item.stem))

    def size_without(self, item: Item) -> int:
        return len(self.items) - (self.place_of(item) is not None)


def framed(task: Task, item: Item, shots: Sequence[Item], *, chat: bool) -> Prompt:
    """What the subject reads in front of the answer.

    Args:
        task: arranged.
        item: one of it.
        shots: put in front.
        chat: whether as a chat, shots being turns of it; an item that is one is always asked so.
    """
    if not (chat or item.messages):
        shown = [f"{one.question}{_worked(one)}" for one in shots]
        return task.prefix + item.intro + task.joint.join([*shown, item.question])
    turns: list[Message] = []
    for one in shots:
        answer = {"role": "assistant", "content": _worked(one).strip()}
        turns += [*_asking(one), answer]
    turns += _asking(item)
    return _begun(task.prefix + item.intro, turns)


def _asking(item: Item) -> list[Message]:
    return list(item.messages) or [{"role": "user", "content": item.stem or item.question.strip()}]


def _begun(before: str, turns: list[Message]) -> list[Message]:
    """The first thing that the user says gets what stands before everything."""
    place = next(i for i, turn in enumerate(turns) if turn["role"] == "user")
    first = {**turns[place], "content": f"{before}{text_of(turns[place])}".lstrip("\n")} if before else turns[place]
    return [*turns[:place], first, *turns[place + 1 :]]


def _worked(item: Item) -> str:
    """The answer as an example shows it."""
    if item.worked:
        return item.worked
    return item.choices[item.gold[0]] if item.choices else f" {item.references[0]}"


def _lettered(item: Item, language: Language) -> Item:
    letters = tuple(f" {letter}" for letter in _letters(item))
    listed = _listed(item)
    return replace(item, question=f"{listed}{CUES[language]}", choices=letters, stem=listed, messages=_told(item, ""))


def _asked(item: Item, language: Language) -> Item:
    """As a text it reads like the lettered one; in a chat it says what is wanted."""
    lettered, letters = _lettered(item, language), _letters(item)
    wish = WISHES[language]
    right = tuple(letters[i] for i in item.gold)
    fields: dict[str, Any] = {**item.fields, "letters": "".join(letters)}
    made = replace(lettered, choices=(), gold=(), references=right, worked=f" {right[0]}", fields=fields)
    return replace(made, stem=f"{lettered.stem}{wish}", messages=_told(item, wish))


def _told(item: Item, wish: str) -> tuple[Message, ...]:
    """The chat, whose last words list the choices."""
    if not item.messages:
        return ()
    return (*item.messages[:-1], {**item.messages[-1], "content": f"{_listed(item)}{wish}"})


def _letters(item: Item) -> list[str]:
    if len(item.choices) > len(LETTERS):
        what = f"{len(item.choices)} choices are more than there are letters"
        raise UserError(what, where=item.where, mend="take --scoring answer")
    return list(LETTERS[: len(item.choices)])


def _listed(item: Item) -> str:
    lines = [f"{letter}. {choice.strip()}" for letter, choice in zip(_letters(item), item.choices, strict=True)]
    return "\n".join([item.stem or item.question.strip(), *lines])
