"""HumanEval (Chen et al. 2021, arXiv 2107.03374): functions to be written below their head and docstring.

Rows: {task_id, prompt, entry_point, canonical_solution, test}; `test` defines `check(candidate)`. What a model writes
becomes a program whose last line calls that.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from intaglio.data.datasets import data_rows
from intaglio.data.readers import read_rows
from intaglio.evaluation.tasks.item import Item, Task
from intaglio.evaluation.tasks.rows import BadRowError, checked, gather, text_of

__all__ = ["STOPS", "human_eval", "program_of", "pulled_human_eval"]

STOPS: Final = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""What ends a function's body (Chen et al. 2021, section 2.1)."""

_FENCED: Final = re.compile(r"^```[\w+-]*[ \t]*\n(.*?)(?:^```|\Z)", re.DOTALL | re.MULTILINE)


def human_eval(path: Path) -> Task:
    """The task in a file of such rows.

    Raises:
        UserError: it cannot be read, or nothing in it can be asked.
    """
    items, bad = gather(read_rows(path, keep_going=True), _row)
    how: dict[str, Any] = {"stop": STOPS, "max_tokens": 512, "metrics": ("pass@1",)}
    return checked(Task("humaneval", "code", items, source=str(path), bad_rows=bad, **how))


def pulled_human_eval(say: Callable[[str], None] = lambda line: None, *, progress: bool = False) -> Task:
    """The 164 published problems, pulled once.

    Raises:
        UserError: they cannot be fetched.
    """
    return human_eval(data_rows("human-eval", say=say, progress=progress))


def program_of(item: Item, written: str) -> str:
    """The program that a model's text makes of an item, its tests included.

    Of an answer in Markdown the first block of code is taken, else the text as it is. Where that defines the function
    itself, only what stands before the function in the prompt is put in front; else the whole prompt is, and the text
    ends where the function does.
    """
    name, prompt = str(item.fields["entry_point"]), item.question
    block = _FENCED.search(written)
    code = block[1] if block else written
    head = re.compile(rf"^def {re.escape(name)}\b", re.MULTILINE)
    if head.search(code):
        start = head.search(prompt)
        program = prompt[: start.start() if start else 0] + code
    else:
        program = prompt + _cut(code)
    return f"{program}\n{item.fields['test']}\ncheck({name})\n"


def _cut(code: str) -> str:
    return code[: min((place for stop in STOPS if (place := code.find(stop)) >= 0), default=len(code))]


def _row(row: Mapping[str, Any], where: str, number: str) -> Item:
    name, test = text_of(row, "entry_point"), text_of(row, "test")
    if not name.isidentifier():
        raise BadRowError(f"'entry_point' is {name!r}, no name of a function")
    known = row.get("task_id")
    solution = row.get("canonical_solution")
    return Item(
        known if isinstance(known, str) and known else number,
        text_of(row, "prompt"),
        references=(solution,) if isinstance(solution, str) else (),
        where=where,
        fields={"entry_point": name, "test": test},
    )
