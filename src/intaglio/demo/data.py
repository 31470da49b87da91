"""The rows that the demo trains on and asks about: newspapers' headlines, sarcastic or serious."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from intaglio.data.datasets.pull import data_rows
from intaglio.demo.stage import Desk
from intaglio.files import read_json_lines, write_json_lines

__all__ = ["HEADLINES", "PAIRS", "SEED", "exam_rows", "tuning_rows", "write_rows"]

HEADLINES: Final = "headlines"
PAIRS: Final = "newsroom-pairs"
SEED: Final = 0

_QUESTION: Final = "Is this headline sarcastic or serious? Answer with one word.\n{text}"
_CHOICES: Final = ("sarcastic", "serious")


def write_rows(desk: Desk, folder: Path, exam: int, tuning: int) -> dict[str, Path]:
    """The exam and the rows that are trained on, which share no headline: a file each, by name."""
    rows = _shuffled(data_rows(HEADLINES, say=desk.say))
    files = {"exam": folder / "exam.jsonl", "tuning": folder / "tuning.jsonl"}
    folder.mkdir(parents=True, exist_ok=True)
    write_json_lines(files["exam"], exam_rows(rows[:exam]))
    write_json_lines(files["tuning"], tuning_rows(rows[exam : exam + tuning]))
    return files


def exam_rows(rows: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """As `intaglio eval` reads a user's own questions."""
    for row in rows:
        yield {"messages": [_asked(row)], "choices": [*_CHOICES], "answer": row["label"], "category": row["label"]}


def tuning_rows(rows: list[dict[str, str]]) -> Iterator[dict[str, Any]]:
    """As `intaglio train` reads chats."""
    for row in rows:
        yield {"messages": [_asked(row), {"role": "assistant", "content": row["label"]}]}


def _asked(row: dict[str, str]) -> dict[str, str]:
    return {"role": "user", "content": _QUESTION.format(text=row["text"])}


def _shuffled(path: Path) -> list[dict[str, str]]:
    """Each headline once, in an order that is the same everywhere."""
    rows = {row["text"]: row for row in read_json_lines(path)}
    order = [*rows.values()]
    random.Random(SEED).shuffle(order)
    return order
