"""The `headlines` once more, cut up for a model that is first taught to write them and then to write sober ones.

A headline belongs to the rarest of its words that both newspapers write about: its subject. So what is asked for, a
headline about a subject, was answered by both, and a pair of such answers prefers the serious one. Nothing here is made
up: all texts are people's.

The headlines of the `exam`'s subjects are in no part, those of `judged` in no other. Who is where is decided by hashes
of the texts, the same everywhere.
"""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import IO, Final

from intaglio.data.datasets.readers import Reader, Row, headlines

__all__ = ["ABOUT", "part"]

ABOUT: Final = {
    "texts": "texts, to pretrain on",
    "demonstrations": "prompt and completion, by either paper; of none of the pairs",
    "pairs": "prompt, chosen (serious) and rejected (satirical)",
    "subjects": "prompts alone",
    "exam": "prompts about other subjects, whose headlines are in no part",
    "judged": "texts with labels, for a judge that no stage has learned from",
}
"""What the parts are."""

_JUDGED: Final = 0.2
"""The share of headlines that only the judge reads."""
_ASKED: Final = 0.12
"""The share of subjects that stay out of every stage."""
_FEWEST, _MOST = 3, 250
"""Headlines of each paper that a subject has at least, and of both at most: no name of everybody, no filler word."""
_WORD: Final = re.compile(r"[a-z]{4,}")
_SIDES: Final = ("serious", "sarcastic")


@dataclass
class _Subject:
    """The headlines of either paper about one thing."""

    serious: list[str] = field(default_factory=list)
    sarcastic: list[str] = field(default_factory=list)

    def pairs(self) -> Iterator[tuple[str, str]]:
        return zip(self.serious, self.sarcastic, strict=False)

    def rest(self) -> Iterator[str]:
        """What no pair has."""
        return (one or other for one, other in zip_longest(self.serious, self.sarcastic) if not (one and other))


def part(name: str) -> Reader:
    """The reader of one of `ABOUT`."""

    def read(path: str, file: IO[bytes]) -> Iterator[Row]:
        return _PARTS[name]([*_unique(headlines(path, file))])

    return read


def _texts(rows: Sequence[Row]) -> Iterator[Row]:
    asked = {text for subject in _subjects(rows, asked=True).values() for text in _all(subject)}
    return ({"text": row["text"]} for row in _learned(rows) if row["text"] not in asked)


def _demonstrations(rows: Sequence[Row]) -> Iterator[Row]:
    for name, subject in _subjects(rows).items():
        yield from ({"prompt": _prompt(name), "completion": text} for text in subject.rest())


def _pairs(rows: Sequence[Row]) -> Iterator[Row]:
    for name, subject in _subjects(rows).items():
        yield from ({"prompt": _prompt(name), "chosen": one, "rejected": other} for one, other in subject.pairs())


def _asked_about(rows: Sequence[Row]) -> Iterator[Row]:
    return ({"prompt": _prompt(name), "subject": name} for name in _subjects(rows))


def _exam(rows: Sequence[Row]) -> Iterator[Row]:
    return ({"prompt": _prompt(name), "subject": name} for name in _subjects(rows, asked=True))


def _judged(rows: Sequence[Row]) -> Iterator[Row]:
    return (row for row in rows if _share(row["text"]) < _JUDGED)


_PARTS: Final[Mapping[str, Callable[[Sequence[Row]], Iterator[Row]]]] = {
    "texts": _texts,
    "demonstrations": _demonstrations,
    "pairs": _pairs,
    "subjects": _asked_about,
    "exam": _exam,
    "judged": _judged,
}
"""Name -> what makes its rows out of all headlines."""


def _prompt(subject: str) -> str:
    return f"about {subject}:\n"


def _unique(rows: Iterator[Row]) -> Iterator[Row]:
    """The first of rows that say the same, whatever label later ones have."""
    seen: set[str] = set()
    for row in rows:
        if row["text"] not in seen:
            seen.add(row["text"])
            yield row


def _learned(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if _share(row["text"]) >= _JUDGED]


def _subjects(rows: Sequence[Row], *, asked: bool = False) -> dict[str, _Subject]:
    """Subject -> its headlines, in an order that says nothing; those that are learned from, or the exam's."""
    learned = _learned(rows)
    counts = _counts(learned)
    found: dict[str, _Subject] = defaultdict(_Subject)
    for row in learned:
        named = [word for word in _WORD.findall(row["text"].lower()) if word in counts]
        if named:
            subject = min(named, key=lambda word: (counts[word], word))
            getattr(found[subject], row["label"]).append(row["text"])
    names = sorted((name for name in found if (_share(f"subject {name}") < _ASKED) == asked), key=_share)
    return {name: found[name] for name in names}


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    """Word -> headlines that have it, for the words that may be subjects."""
    by_side = {side: Counter[str]() for side in _SIDES}
    for row in rows:
        by_side[row["label"]].update(set(_WORD.findall(row["text"].lower())))
    one, other = by_side.values()
    return {
        word: one[word] + other[word]
        for word in one
        if min(one[word], other[word]) >= _FEWEST and one[word] + other[word] <= _MOST
    }


def _all(subject: _Subject) -> Iterator[str]:
    return chain(subject.serious, subject.sarcastic)


def _share(text: str) -> float:
    """From 0 to 1, by the text alone."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") / 2**32
