"""BLEU and chrF of whole sets of translations (sacrebleu's), and how sure they are."""

from collections.abc import Sequence
from importlib import import_module
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from intaglio.errors import UserError
from intaglio.evaluation.intervals import Interval

__all__ = ["References", "Tokenize", "sentence_scores", "translation_gain", "translation_scores"]

Tokenize = Literal["13a", "zh", "char", "intl"]
References = Sequence[str | Sequence[str]]
"""(n,): one reference to a translation, or several."""

RESAMPLES = 1000


def translation_scores(
    translations: Sequence[str], references: References, tokenize: Tokenize = "13a"
) -> dict[str, Interval]:
    """`bleu` (Papineni et al. 2002) and `chrf` (Popovic 2015), 0 to 100, each with its 95 % bootstrap interval.

    Args:
        translations, references: (n,) each.
        tokenize: of BLEU: `zh` splits Chinese into characters; `13a` is for languages with spaces.

    Raises:
        UserError: sacrebleu is not installed.
    """
    assert len(translations) == len(references), "a translation each, a reference each"
    assert translations, "no rows, no score"
    return {name: _scored(metric, translations, references) for name, metric in _metrics(tokenize).items()}


def sentence_scores(translation: str, references: Sequence[str], tokenize: Tokenize = "13a") -> dict[str, float]:
    """`bleu` and `chrf` of one translation, 0 to 100; BLEU counts n-grams up to the length there is.

    Raises:
        UserError: sacrebleu is not installed.
    """
    found = _metrics(tokenize, effective_order=True).items()
    return {name: float(metric.sentence_score(translation, [*references]).score) for name, metric in found}


def translation_gain(
    ours: Sequence[Sequence[str]],
    theirs: Sequence[Sequence[str]],
    references: References,
    tokenize: Tokenize = "13a",
) -> dict[str, Interval]:
    """How far our scores are above theirs, in points, by paired bootstrap (Koehn 2004): both have the same draws.

    Args:
        ours, theirs: the translations (n,) of each of some runs; the counts of all runs are added.
        references, tokenize: as above.
    """
    found = {}
    for name, metric in _metrics(tokenize).items():
        mine, others = (np.sum([_counts(metric, run, references) for run in runs], axis=0) for runs in (ours, theirs))
        gains = [_score(metric, mine[draw]) - _score(metric, others[draw]) for draw in _draws(len(references))]
        low, high = np.quantile(gains, (0.025, 0.975))
        found[name] = Interval(_score(metric, mine) - _score(metric, others), float(low), float(high))
    return found


def _scored(metric: Any, translations: Sequence[str], references: References) -> Interval:
    """Counts of each row, summed over draws of rows: sacrebleu's own bootstrap fails where a draw's score is 0."""
    counts = _counts(metric, translations, references)
    low, high = np.quantile([_score(metric, counts[draw]) for draw in _draws(len(counts))], (0.025, 0.975))
    return Interval(_score(metric, counts), float(low), float(high))


def _metrics(tokenize: Tokenize, *, effective_order: bool = False) -> dict[str, Any]:
    library = _sacrebleu()
    return {"bleu": library.BLEU(tokenize=tokenize, effective_order=effective_order), "chrf": library.CHRF()}


def _counts(metric: Any, translations: Sequence[str], references: References) -> NDArray[Any]:
    """(n, numbers that add up)"""
    each = [[one] if isinstance(one, str) else one for one in references]
    streams = [list(stream) for stream in zip_longest(*each)]  # None: this row has no further reference
    return np.array(metric._extract_corpus_statistics(list(translations), streams))


def _draws(rows: int) -> NDArray[Any]:
    """(RESAMPLES, rows): the same ones each time."""
    return np.random.default_rng(0).integers(rows, size=(RESAMPLES, rows))


def _score(metric: Any, counts: NDArray[Any]) -> float:
    return float(metric._compute_score_from_stats(counts.sum(axis=0).tolist()).score)


def _sacrebleu() -> Any:
    try:
        return import_module("sacrebleu.metrics")
    except ImportError as error:
        what, mend = "BLEU and chrF need sacrebleu, which is not installed", "run `pip install intaglio[eval]`"
        raise UserError(what, mend=mend) from error
