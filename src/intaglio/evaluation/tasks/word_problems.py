"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168): problems in words, whose answers end in `#### ` and a number."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from intaglio.evaluation.tasks.item import Item, Task
from intaglio.evaluation.tasks.rows import BadRowError, checked, gather, rows_of, text_of
from intaglio.evaluation.tasks.splits import find_splits

__all__ = ["gsm8k"]

MARK: Final = "####"


def gsm8k(path: Path) -> Task:
    """`test.jsonl` and `train.jsonl`: rows {question, answer}; the number behind the mark is compared.

    Raises:
        UserError: see `find_splits`; or nothing in it can be asked.
    """
    asked, shown = find_splits(path, ("test",), ("train",))
    items, bad = gather(rows_of(asked), _row)
    examples, _ = gather(rows_of(shown), _row)
    how: dict[str, Any] = {"stop": ("\nQuestion:",), "max_tokens": 256, "metrics": ("number",)}
    return checked(Task("gsm8k", "generation", items, examples, source=str(path), bad_rows=bad, **how))


def _row(row: Mapping[str, Any], where: str, number: str) -> Item:
    question, answer = text_of(row, "question").strip(), text_of(row, "answer").strip()
    _, mark, final = answer.rpartition(MARK)
    if not mark or not final.strip():
        raise BadRowError(f"'answer' has no number behind {MARK}")
    references = (final.strip().replace(",", ""),)
    asked = f"Question: {question}\nAnswer:"
    return Item(number, asked, references=references, where=where, stem=question, worked=f" {answer}")
