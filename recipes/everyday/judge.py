"""How near an answer comes to what people called right, by its words: a score for `recipes/ppo-smollm2.yaml` that owes
nothing to a reward model.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

WORD = re.compile(r"[a-z0-9']+")


def nearer(completions: Sequence[str], chosen: Sequence[Any], rejected: Sequence[Any], **columns: Any) -> list[float]:
    """Overlap of words (F1) with the right answer, less that with the wrong one: from -1 to 1."""
    rows = zip(completions, chosen, rejected, strict=True)
    return [overlap(text, _said(right)) - overlap(text, _said(wrong)) for text, right, wrong in rows]


def right_words(completions: Sequence[str], chosen: Sequence[Any], **columns: Any) -> list[float]:
    """Overlap of words (F1) with the right answer: from 0 to 1."""
    return [overlap(text, _said(right)) for text, right in zip(completions, chosen, strict=True)]


def overlap(text: str, other: str) -> float:
    """F1 of the words of two texts, each as often as it occurs; 0 where they share none."""
    ours, theirs = (Counter(WORD.findall(one.lower())) for one in (text, other))
    shared = (ours & theirs).total()
    return 2 * shared / (ours.total() + theirs.total()) if shared else 0.0


def _said(answer: Any) -> str:
    return answer if isinstance(answer, str) else " ".join(message["content"] for message in answer)
