"""Written answers, scored: one row an item, and the scores that only a whole set has.

Metrics of an item:

- `exact_match`, `f1` (see `metrics`), 0 or 1, and 0 to 1
- `number`: whether the number answered with is the reference's; `choice`: the same of a letter (see `extraction`)
- `rouge1`, `rouge2`, `rougeL`: 0 to 1 (see `rouge`)
- `bleu`, `chrf`: 0 to 100, of the whole set with an interval; the items' own are `sentence_bleu` and `sentence_chrf`
- the name of a verifier, a function that gives a number (see `verifiers`); what it cannot score has no score
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from intaglio.errors import UserError, nearest
from intaglio.evaluation.extraction import extract_choice, extract_number
from intaglio.evaluation.metrics import exact_match, f1
from intaglio.evaluation.results import Summary
from intaglio.evaluation.rouge import rouge
from intaglio.evaluation.tasks.item import Item, Task
from intaglio.evaluation.translation import Tokenize, sentence_scores, translation_scores
from intaglio.evaluation.verifiers import Verifier, verifier_of

__all__ = ["GENERATION_METRICS", "Scored", "check_metrics", "score_answers", "tokenize_of", "whole_scores"]

Measure = Callable[[Item, str], float]

DEFAULT: Final = ("exact_match",)
LETTERS: Final = "ABCDEFGHIJ"
_TRANSLATION: Final = ("bleu", "chrf")
_CHINESE: Final = re.compile("[\u3400-\u9fff]")


@dataclass(frozen=True)
class Scored:
    """One answer.

    Attributes:
        prediction: what was taken for the answer.
        scores: metric -> value.
    """

    prediction: str
    scores: Mapping[str, float]


def score_answers(task: Task, answers: Mapping[str, str]) -> dict[str, Scored]:
    """Scores the answers to items of a task, by the task's metrics.

    Args:
        task: of the kind `generation`.
        answers: id of an item -> what was written; items without an answer have no row.

    Raises:
        UserError: there is no such metric, or it needs what is not installed.
    """
    names = task.metrics or DEFAULT
    items = [item for item in task.items if item.id in answers]
    texts = [answers[item.id] for item in items]
    rows: list[dict[str, float]] = [{} for _ in items]
    for name in names:
        for row, found in zip(rows, _column(name, items, texts), strict=True):
            row |= found
    read = zip(items, texts, rows, strict=True)
    return {item.id: Scored(_prediction(names[0], item, text), row) for item, text, row in read}


def whole_scores(task: Task, answers: Mapping[str, str]) -> dict[str, Summary]:
    """`bleu` and `chrf` of all answers, as far as the task asks for them; their intervals are over items.

    Raises:
        UserError: sacrebleu is not installed.
    """
    names = [name for name in _TRANSLATION if name in task.metrics]
    items = [item for item in task.items if item.id in answers]
    if not names or not items:
        return {}
    references = [item.references for item in items]
    found = translation_scores([answers[item.id] for item in items], references, tokenize_of(references))
    return {name: Summary(*found[name], len(items)) for name in names}


def check_metrics(names: Sequence[str]) -> None:
    """Whether answers can be scored by these.

    Raises:
        UserError: there is no such metric; says which.
    """
    for name in names:
        if name not in GENERATION_METRICS:
            _verifier(name)


def tokenize_of(references: Sequence[Sequence[str]]) -> Tokenize:
    """How BLEU parts words: `zh`, characters, where most of the references have Chinese in them; else `13a`."""
    chinese = [any(map(_CHINESE.search, some)) for some in references]
    return "zh" if 2 * sum(chinese) > len(chinese) else "13a"


def _column(name: str, items: Sequence[Item], texts: Sequence[str]) -> list[dict[str, float]]:
    """What one metric says of each answer."""
    pairs = [*zip(items, texts, strict=True)]
    if name in _MEASURES:
        return [{name: _MEASURES[name](item, text)} for item, text in pairs]
    if name in _TRANSLATION:
        how = tokenize_of([item.references for item in items])
        return [{f"sentence_{name}": sentence_scores(text, item.references, how)[name]} for item, text in pairs]
    columns = [{"answer": next(iter(item.references), None), **item.fields} for item in items]
    found = _verifier(name)([item.messages or item.question for item in items], texts, columns)
    return [{} if math.isnan(value) else {name: value} for value in found]


def _verifier(name: str) -> Verifier:
    try:
        return verifier_of(name)
    except UserError as error:
        if name.endswith(".py") or ".py:" in name:
            raise
        what, mend = f"no metric {name!r} of written answers", nearest(name, GENERATION_METRICS)
        raise UserError(what, where="metrics", mend=mend) from error


def _prediction(metric: str, item: Item, text: str) -> str:
    if metric == "choice":
        return _letter(item, text) or ""
    if metric == "number":
        number = extract_number(text)
        return "" if number is None else f"{number:.12g}"
    return text.strip()


def _letter(item: Item, text: str) -> str | None:
    return extract_choice(text, item.fields.get("letters", LETTERS))


def _exact(item: Item, text: str) -> float:
    return float(exact_match([text], [item.references])[0])


def _number(item: Item, text: str) -> float:
    said = extract_number(text)
    return float(said is not None and said in map(extract_number, item.references))


def _choice(item: Item, text: str) -> float:
    said = _letter(item, text)
    return float(said is not None and said in [_letter(item, reference) for reference in item.references])


def _rouge(name: str) -> Measure:
    return lambda item, text: rouge(text, item.references)[name]


_MEASURES: Final[dict[str, Measure]] = {
    "exact_match": _exact,
    "f1": lambda item, text: f1(text, item.references),
    "number": _number,
    "choice": _choice,
    **{name: _rouge(name) for name in ("rouge1", "rouge2", "rougeL")},
}

GENERATION_METRICS: Final = (*_MEASURES, *_TRANSLATION)
"""Those by name; besides, verifiers."""
