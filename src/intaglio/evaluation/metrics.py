"""Metrics of answers and of likelihoods."""

import math
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["bits_per_byte", "exact_match", "f1", "normalise"]

EDGES = string.punctuation + string.whitespace + "。，、；：？！“”‘’（）《》…"


def normalise(answer: str) -> str:
    """What `exact_match` compares: case folded, runs of white space made one space, and punctuation and white space
    taken off both ends. What stands inside (hyphens, decimal points, articles) stays.

    A sign in front of a number is no punctuation: `-3` is not `3`.
    """
    words = " ".join(answer.casefold().split())
    bare = words.strip(EDGES)
    signed = bare[:1].isdigit() and words[: words.find(bare)].endswith("-")
    return f"-{bare}" if signed else bare


def exact_match(answers: Sequence[str], references: Sequence[str | Sequence[str]]) -> NDArray[np.bool_]:
    """Per answer, whether it equals its reference (or one of several) after `normalise`; an empty answer never does.

    Args:
        answers: (n,).
        references: (n,).

    Returns:
        (n,): its mean is the exact match, and `evaluation.intervals` says how sure that is.
    """
    assert len(answers) == len(references), "an answer each, a reference each"
    pairs = zip(answers, references, strict=True)
    return np.array([_matches(answer, reference) for answer, reference in pairs], dtype=np.bool_)


def _matches(answer: str, reference: str | Sequence[str]) -> bool:
    allowed = (reference,) if isinstance(reference, str) else reference
    return bool(normalise(answer)) and normalise(answer) in {normalise(one) for one in allowed}


def f1(answer: str, references: Sequence[str]) -> float:
    """The harmonic mean of precision and recall over words, against the nearest reference (SQuAD, Rajpurkar 2016).

    Words are what `normalise` leaves, parted at white space.
    """
    return max((_f1(normalise(answer).split(), normalise(one).split()) for one in references), default=0.0)


def _f1(made: Sequence[str], wanted: Sequence[str]) -> float:
    shared = sum((Counter(made) & Counter(wanted)).values())
    return 2 * shared / (len(made) + len(wanted)) if shared else 0.0


def bits_per_byte(nats: float, num_bytes: int) -> float:
    """Bits that one byte of text costs, from the summed -log p of its tokens: comparable across tokenizers."""
    return nats / math.log(2) / num_bytes
