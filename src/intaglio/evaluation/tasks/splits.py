"""Which files of a published data set hold the questions, and which the worked examples.

Names say so: `abstract_algebra_test.csv`, `val/accountant_val.csv`, `test-00000-of-00001.parquet`, `gsm8k/train.jsonl`.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from intaglio.data.readers import Row
from intaglio.data.row_formats import READERS
from intaglio.data.unpacking import suffix_inside
from intaglio.errors import UserError

__all__ = ["Found", "find_splits", "headless_rows", "subject_of"]

WORDS: Final = {"test": "test", "val": "val", "validation": "val", "valid": "val", "dev": "dev", "train": "train"}
LETTERS: Final = ("A", "B", "C", "D")
TAIL: Final = re.compile(r"(?:^|[_-])(?:test|val|validation|valid|dev|train)(?:-\d+-of-\d+)?$")

Found = dict[str, list[Path]]
"""Split -> its files, in the order of their names."""


def find_splits(path: Path, questions: Sequence[str], examples: Sequence[str] = ()) -> tuple[list[Path], list[Path]]:
    """The files of the first of the splits `questions` that is there, and of the first of `examples`.

    A file that is named itself holds the questions, whatever it is called.

    Raises:
        UserError: there is no such file or folder, or no split in it.
    """
    if path.is_file():
        return [path], []
    if not path.is_dir():
        raise UserError("no such file or folder", where=str(path), mend="check the path")
    found: Found = {}
    for file in sorted(path.rglob("*")):
        if file.is_file() and suffix_inside(file) in READERS and (split := _split(file.relative_to(path))):
            found.setdefault(split, []).append(file)
    asked = next((found[split] for split in questions if split in found), None)
    if asked is None:
        wanted = " or ".join(questions)
        raise UserError(
            f"no file in it is named after the split {wanted}", where=str(path), mend="name the file itself"
        )
    return asked, next((found[split] for split in examples if split in found), [])


def subject_of(file: Path) -> str:
    """What a file or its folder is named after besides the split: `abstract_algebra`; empty where nothing."""
    stem = file.name.partition(".")[0]
    rest = TAIL.sub("", stem)
    if rest:
        return rest
    return "" if file.parent.name in WORDS or file.parent.name == "data" else file.parent.name


def headless_rows(file: Path) -> Iterator[Row]:
    """The records of a CSV file that names no columns, as MMLU's: question, A, B, C, D, answer.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            records = csv.reader(stream)
            line = 1
            for record in records:
                yield Row(_record(record), f"{file}:{line}")
                line = records.line_num + 1
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read: {error}", where=str(file)) from error


def _record(cells: list[str]) -> dict[str, object]:
    if len(cells) != len(LETTERS) + 2:
        return {"cells": len(cells)}
    return {"question": cells[0], **dict(zip(LETTERS, cells[1:-1], strict=True)), "answer": cells[-1]}


def _split(file: Path) -> str | None:
    """Of a file, or of the folder nearest to it."""
    for part in reversed(file.parts):
        for word in reversed(re.split(r"[^a-z]+", part.lower())):
            if word in WORDS:
                return WORDS[word]
    return None
