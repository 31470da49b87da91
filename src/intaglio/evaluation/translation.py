"""BLEU and chrF of whole sets of translations (sacrebleu's), and how sure they are."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from intaglio.errors import UserError
from intaglio.evaluation.intervals import Interval

__all__ = ["Tokenize", "translation_scores"]

Tokenize = Literal["13a", "zh", "char", "intl"]
RESAMPLES = 1000


def translation_scores(
    translations: Sequence[str], references: Sequence[str], tokenize: Tokenize = "13a"
) -> dict[str, Interval]:
    """`bleu` (Papineni et al. 2002) and `chrf` (Popovic 2015), 0 to 100, each with its 95 % bootstrap interval.

    Args:
        translations, references: (n,) each, one reference to a translation.
        tokenize: of BLEU: `zh` splits Chinese into characters; `13a` is for languages with spaces.

    Raises:
        UserError: sacrebleu is not installed.
    """
    assert len(translations) == len(references), "a translation each, a reference each"
    assert translations, "no rows, no score"
    library = _sacrebleu()
    metrics = {"bleu": library.BLEU(tokenize=tokenize), "chrf": library.CHRF()}
    return {name: _scored(metric, list(translations), list(references)) for name, metric in metrics.items()}


def _scored(metric: Any, translations: list[str], references: list[str]) -> Interval:
    """Counts of each row, summed over draws of rows: sacrebleu's own bootstrap fails where a draw's score is 0."""
    counts = np.array(metric._extract_corpus_statistics(translations, [references]))  # (n, numbers that add up)
    draws = np.random.default_rng(0).integers(len(counts), size=(RESAMPLES, len(counts)))
    scores = [_score(metric, counts[draw]) for draw in draws]
    low, high = np.quantile(scores, (0.025, 0.975))
    return Interval(_score(metric, counts), float(low), float(high))


def _score(metric: Any, counts: NDArray[Any]) -> float:
    return float(metric._compute_score_from_stats(counts.sum(axis=0).tolist()).score)


def _sacrebleu() -> Any:
    try:
        return import_module("sacrebleu.metrics")
    except ImportError as error:
        what, mend = "BLEU and chrF need sacrebleu, which is not installed", "run `pip install intaglio[eval]`"
        raise UserError(what, mend=mend) from error
