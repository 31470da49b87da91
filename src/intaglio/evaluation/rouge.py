"""ROUGE (Lin 2004): how much of a reference's word sequences an answer has, as F1.

On English the numbers are those of Google's `rouge-score` without its stemmer. Beyond that alphabet, where it sees no
words at all, a word is a run of letters and digits, and each Chinese character, kana or hangul syllable is a word.

Legend: m words of the answer, n of the reference.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

__all__ = ["rouge", "rouge_words"]

_SINGLE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_SINGLE}]|[^\W_{_SINGLE}]+")


def rouge(answer: str, references: Sequence[str]) -> dict[str, float]:
    """`rouge1`, `rouge2` and `rougeL`, each 0 to 1 against the reference that fits best."""
    said = rouge_words(answer)
    each = [_scores(said, rouge_words(reference)) for reference in references]
    return {name: max((one[name] for one in each), default=0.0) for name in ("rouge1", "rouge2", "rougeL")}


def rouge_words(text: str) -> list[str]:
    """The words that are compared."""
    return _WORD.findall(text.lower())


def _scores(said: Sequence[str], meant: Sequence[str]) -> dict[str, float]:
    longest = _harmonic(_longest_subsequence(said, meant), len(said), len(meant))
    return {"rouge1": _overlap(said, meant, 1), "rouge2": _overlap(said, meant, 2), "rougeL": longest}


def _overlap(said: Sequence[str], meant: Sequence[str], length: int) -> float:
    made, wanted = (Counter(zip(*(words[i:] for i in range(length)), strict=False)) for words in (said, meant))
    return _harmonic((made & wanted).total(), made.total(), wanted.total())


def _longest_subsequence(said: Sequence[str], meant: Sequence[str]) -> int:
    """A row of the table at a time: what a match adds to the row above, then the best so far from the left."""
    if not said or not meant:
        return 0
    wanted = np.array(meant)
    best = np.zeros(len(meant) + 1, dtype=np.int64)  # (n + 1,)
    for word in said:
        matched = np.where(wanted == word, best[:-1] + 1, best[1:])  # (n,)
        best[1:] = np.maximum.accumulate(matched)
    return int(best[-1])


def _harmonic(shared: int, made: int, wanted: int) -> float:
    return 2 * shared / (made + wanted) if shared else 0.0
