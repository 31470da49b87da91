"""Multiple choice that a small model can answer, written by code: which of these is an animal, a colour, a fruit?"""

import json
import random
from pathlib import Path

from intaglio.evaluation.bridges.evalscope import evalscope_sheet
from intaglio.evaluation.bridges.sheet import Sheet
from intaglio.evaluation.runs import Settings, units_of
from intaglio.evaluation.tasks.item import Item, Task
from intaglio.files import write_json_lines

__all__ = ["kind_sheet", "kind_task", "write_chats"]

KINDS = {
    "an animal": "dog cat horse cow sheep lion tiger bear wolf fox rabbit mouse duck goose eagle frog".split(),
    "a colour": "red blue green yellow purple orange brown black white grey pink".split(),
    "a fruit": "apple banana pear plum cherry grape lemon peach mango melon".split(),
    "a city": "Paris London Rome Berlin Madrid Vienna Athens Moscow Tokyo Cairo Boston Chicago".split(),
    "a number": "one two three four five six seven eight nine ten twelve twenty".split(),
    "a day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split(),
}


def kind_task(count: int, seed: int, name: str = "kinds") -> Task:
    """So many questions of four choices, no two alike; the right one stands anywhere."""
    dice, seen = random.Random(seed), dict[str, Item]()
    while len(seen) < count:
        kinds = dice.sample(list(KINDS), 4)
        words = [dice.choice(KINDS[kind]) for kind in kinds]
        right = dice.randrange(4)
        stem = f"Which of these is {kinds[right]}?"
        key = json.dumps([stem, words])
        seen[key] = Item(str(len(seen)), f"{stem}\nAnswer:", tuple(f" {w}" for w in words), (right,), stem=stem)
    return Task(name, "choice", tuple(seen.values()))


def kind_sheet(task: Task) -> Sheet:
    """As EvalScope puts it."""
    settings = Settings(scoring="answer")
    (unit,) = units_of([task], settings)
    return evalscope_sheet(unit, settings)


def write_chats(file: Path, task: Task) -> None:
    """The same as chats to learn from: the question as EvalScope puts it, the answer in the form it looks for."""
    sheet = kind_sheet(task)
    said = ({"role": "assistant", "content": f"ANSWER: {item.references[0]}"} for item in sheet.task.items)
    asked = (item.messages for item in sheet.task.items)
    write_json_lines(file, [{"messages": [*question, answer]} for question, answer in zip(asked, said, strict=True)])
