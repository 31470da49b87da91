"""Scores of headlines for `recipes/three-stages.yaml` that owe nothing to any model of ours.

`sober` is naive Bayes over words (add-one smoothing) on headlines that no stage reads; `on_subject` looks for the word;
`varied` falls where a policy says the same again and again because a reward likes it.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from intaglio.data.datasets import data_rows
from intaglio.data.readers import read_rows

WORD = re.compile(r"[a-z']+|[0-9]+|[^\sa-z0-9]")
SUBJECT = re.compile(r"[a-z]+")


def sober(completions: Sequence[str], **columns: Any) -> list[float]:
    """The log-odds, in nats, that the serious paper printed it, each word counted once; 0 for nothing."""
    odds, unknown = log_odds()
    return [sum(odds.get(word, unknown) for word in set(WORD.findall(text.lower()))) for text in completions]


def on_subject(completions: Sequence[str], subject: Sequence[str], **columns: Any) -> list[float]:
    """1 where the headline has the word it was to be about."""
    return [float(word in SUBJECT.findall(text.lower())) for text, word in zip(completions, subject, strict=True)]


def varied(completions: Sequence[str], **columns: Any) -> list[float]:
    """Different words as a share of all; 0 for nothing."""
    words = [WORD.findall(text.lower()) for text in completions]
    return [len(set(some)) / max(len(some), 1) for some in words]


@cache
def log_odds() -> tuple[dict[str, float], float]:
    """Of each word in favour of the serious paper, and of a word that neither used."""
    counts: dict[str, Counter[str]] = {"serious": Counter(), "sarcastic": Counter()}
    for row in read_rows(data_rows("newsroom-judged")):
        assert isinstance(row.value, dict)
        counts[row.value["label"]].update(WORD.findall(row.value["text"].lower()))
    known = counts["serious"].keys() | counts["sarcastic"].keys()
    for_it, against = counts["serious"], counts["sarcastic"]
    bias = math.log((against.total() + len(known)) / (for_it.total() + len(known)))
    return {word: math.log((for_it[word] + 1) / (against[word] + 1)) + bias for word in known}, bias
