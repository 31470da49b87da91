"""Sets of multiple-choice questions in the layouts in which they are published, laid out as lm-eval's tasks do.

MMLU (Hendrycks et al. 2021), C-Eval (Huang et al. 2023), CMMLU (Li et al. 2023), ARC (Clark et al. 2018) and HellaSwag
(Zellers et al. 2019). Those with lists of letters are scored by the letter unless one asks for the answer; examples are
the first of the subject's own. docs/evaluation.md has a table of the layouts.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from intaglio.data.readers import Row, read_rows
from intaglio.evaluation.tasks.item import BadRow, Item, Language, Task
from intaglio.evaluation.tasks.rows import BadRowError, checked, choice_texts, gather, rows_of, text_of, turned
from intaglio.evaluation.tasks.splits import LETTERS, find_splits, headless_rows, subject_of
from intaglio.files import read_json

__all__ = ["arc", "ceval", "cmmlu", "hellaswag", "mmlu"]

SUBJECTS: Final = "subject_mapping.json"
"""Beside C-Eval's files: slug -> English name, Chinese name, field."""


def mmlu(path: Path) -> Task:
    """`test/*_test.csv` and `dev/*_dev.csv` without heads, or rows {question, choices, answer, subject}.

    Raises:
        UserError: see `find_splits`; or nothing in it can be asked.
    """
    intro = "The following are multiple choice questions (with answers) about {}.\n\n"
    return _by_subject("mmlu", path, ("test", "val"), ("dev",), intro, "en", _option_row)


def ceval(path: Path) -> Task:
    """`val/*_val.csv` and `dev/*_dev.csv` (the answers of `test` are not public): id, question, A, B, C, D, answer.

    Raises:
        UserError: see `find_splits`; or nothing in it can be asked.
    """
    intro = "以下是中国关于{}的单项选择题，请选出其中的正确答案。\n\n"
    return _by_subject("ceval", path, ("val", "test"), ("dev",), intro, "zh", _option_row)


def cmmlu(path: Path) -> Task:
    """`test/*.csv` and `dev/*.csv`: Question, A, B, C, D, Answer.

    Raises:
        UserError: see `find_splits`; or nothing in it can be asked.
    """
    intro = "以下是关于{}的单项选择题，请直接给出正确答案的选项。\n\n"
    return _by_subject("cmmlu", path, ("test",), ("dev",), intro, "zh", _option_row)


def arc(path: Path) -> Task:
    """Rows {id, question: {stem, choices: [{text, label}]}, answerKey}, or {id, question, choices: {text, label}, ...}.

    Raises:
        UserError: see `find_splits`; or nothing in it can be asked.
    """
    asked, shown = find_splits(path, ("test", "val"), ("train", "dev"))
    items, bad = gather(rows_of(asked), _arc_row)
    examples, _ = gather(rows_of(shown), _arc_row)
    return checked(Task("arc", "choice", items, examples, source=str(path), bad_rows=bad))


def hellaswag(path: Path) -> Task:
    """Rows {ctx_a, ctx_b, activity_label, endings, label}; the answers of `test` are not public.

    Raises:
        UserError: see `find_splits`; or nothing in it can be asked.
    """
    asked, shown = find_splits(path, ("val", "test"), ("train",))
    items, bad = gather(rows_of(asked), _hellaswag_row)
    examples, _ = gather(rows_of(shown), _hellaswag_row)
    return checked(Task("hellaswag", "choice", items, examples, source=str(path), bad_rows=bad))


def _by_subject(
    name: str,
    path: Path,
    questions: Sequence[str],
    examples: Sequence[str],
    intro: str,
    language: Language,
    make: Callable[[Mapping[str, Any], str], Item],
) -> Task:
    names = _subject_names(path)
    asked, shown = find_splits(path, questions, examples)
    made = [_subject(file, intro, names, language, make) for file in asked]
    worked = [item for file in shown for item in _subject(file, intro, names, language, make)[0]]
    items = tuple(item for good, _ in made for item in good)
    bad = tuple(row for _, rows in made for row in rows)
    how: dict[str, Any] = {"scoring": "letter", "draw": "first", "language": language}
    return checked(Task(name, "choice", items, tuple(worked), source=str(path), bad_rows=bad, **how))


def _subject(
    file: Path,
    intro: str,
    names: Mapping[str, str],
    language: Language,
    make: Callable[[Mapping[str, Any], str], Item],
) -> tuple[tuple[Item, ...], tuple[BadRow, ...]]:
    """The items of one file, which is one subject's unless its rows say otherwise."""
    own = subject_of(file)

    def item(row: Mapping[str, Any], where: str, number: str) -> Item:
        subject = str(row.get("subject") or own)
        made = make(row, language)
        about = names.get(subject, subject.replace("_", " "))
        number = f"{subject}#{number}" if subject else number
        return replace(made, id=number, where=where, category=subject, intro=intro.format(about) if about else "")

    return gather(rows_of([file], _rows), item)


def _rows(file: Path) -> Iterable[Row]:
    """CSV files without a head begin with a question; those with one name a column `A`."""
    if file.suffix.lower() == ".csv" and not _has_head(file):
        return headless_rows(file)
    return read_rows(file, keep_going=True)


def _has_head(file: Path) -> bool:
    with file.open(encoding="utf-8-sig", errors="replace") as stream:
        return set(LETTERS) <= set(stream.readline().strip().split(","))


def _option_row(row: Mapping[str, Any], language: str) -> Item:
    """A question whose choices stand in a list, or under A to D."""
    if "cells" in row:
        raise BadRowError(f"{row['cells']} cells where there should be {len(LETTERS) + 2}")
    key = "Question" if "Question" in row else "question"
    question = text_of(row, key).strip()
    told = row.get("choices")
    choices = choice_texts(told if told is not None else [row.get(letter) for letter in LETTERS if letter in row])
    right = turned(row.get("Answer" if key == "Question" else "answer"), choices)
    return _laid_out(question, choices, right, language)


def _laid_out(question: str, choices: tuple[str, ...], right: int, language: str) -> Item:
    cue, blank = ("\n答案：", "") if language == "zh" else ("\nAnswer:", " ")
    texts = tuple(f"{blank}{choice.strip()}" for choice in choices)
    return Item("", f"{question}{cue}", texts, (right,), stem=question)


def _arc_row(row: Mapping[str, Any], where: str, number: str) -> Item:
    told = row.get("question")
    stem, listed = (told.get("stem"), told.get("choices")) if isinstance(told, dict) else (told, row.get("choices"))
    question = text_of({"question": stem}, "question").strip()
    try:
        pairs = listed if isinstance(listed, list) else _columns(listed)
        labels, texts = [str(one["label"]) for one in pairs], [one["text"] for one in pairs]
    except (TypeError, KeyError) as error:
        raise BadRowError("'choices' are not texts with labels") from error
    choices = choice_texts(texts)
    if (right := str(row.get("answerKey"))) not in labels:
        raise BadRowError(f"the answer {right!r} is none of the labels {', '.join(labels)}")
    item = _laid_out(question, choices, labels.index(right), "en")
    return replace(item, id=str(row.get("id") or number), where=where, question=f"Question: {question}\nAnswer:")


def _columns(listed: Any) -> list[dict[str, Any]]:
    return [{"text": text, "label": label} for text, label in zip(listed["text"], listed["label"], strict=True)]


def _hellaswag_row(row: Mapping[str, Any], where: str, number: str) -> Item:
    begun = f"{text_of(row, 'ctx_a')} {str(row.get('ctx_b') or '').capitalize()}"
    question = _clean(f"{text_of(row, 'activity_label')}: {begun}")
    told = row.get("endings")
    endings = choice_texts([_clean(one) for one in told] if isinstance(told, list) else told, "endings")
    label = row.get("label")
    if label in (None, ""):
        raise BadRowError("'label' is missing: the answers of this split are not public")
    right = turned(int(label) if isinstance(label, str) and label.isdecimal() else label, endings)
    texts = tuple(f" {ending}" for ending in endings)
    own = str(row.get("ind", number))
    return Item(own, question, texts, (right,), where=where, stem=question, category=str(row.get("split_type") or ""))


def _clean(text: Any) -> str:
    """What WikiHow's pages leave behind is taken out, as everybody does who measures with it."""
    if not isinstance(text, str):
        raise BadRowError("'endings' is not a list of texts")
    bare = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return bare.replace("  ", " ")


def _subject_names(path: Path) -> dict[str, str]:
    file = path / SUBJECTS
    if not file.is_file():
        return {}
    return {slug: str(names[1]) for slug, names in read_json(file).items()}
