"""Perplexity and bits per byte of texts, by a window that slides over them.

A window holds so many tokens; the next one begins `stride` tokens later, and only what no earlier window has held is
scored, each token once, behind at least `window - stride` others (the way of transformers' documentation; a text that
fits is one window). In front of a text stands the BOS, or the EOS where there is none, as lm-evaluation-harness has
it, so that every token of the text is scored and every byte is paid for. Packed, the texts are one stream with that
token between them; it is context, and never scored.

Legend: T tokens of a text or stream, n units (texts, or windows).
"""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from intaglio.errors import UserError
from intaglio.evaluation.intervals import Interval, bootstrap_ratio
from intaglio.evaluation.journal import Journal
from intaglio.evaluation.metrics import bits_per_byte
from intaglio.evaluation.results import Missing, Outcome, Summary, TaskResult
from intaglio.evaluation.subjects.spans import first_token
from intaglio.evaluation.subjects.subject import Subject, Unanswered
from intaglio.text.tokenizer import Tokenizer

__all__ = [
    "Document",
    "Part",
    "Perplexity",
    "Sliding",
    "measure_perplexity",
    "perplexity_result",
    "texts_hash",
    "windows",
]

AT_ONCE: Final = 16
"""Windows that are asked for together."""


@dataclass(frozen=True)
class Sliding:
    """How texts are read.

    Attributes:
        window: tokens at once.
        stride: from the beginning of one window to that of the next; less than `window`.
        packed: whether the texts are one stream.
    """

    window: int
    stride: int
    packed: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.stride < self.window:
            what = f"a stride of {self.stride} does not fit a window of {self.window}"
            raise UserError(what, where="--stride", mend="take 1 or more, and less than the window")


class Document(NamedTuple):
    """A text, and where it stands."""

    text: str
    where: str


class Part(NamedTuple):
    """What is known of a text or a window.

    Attributes:
        nats: -ln p of its scored tokens.
        tokens: how many those are.
        bytes: of the text that they stand for.
    """

    nats: float
    tokens: int
    bytes: int


@dataclass(frozen=True)
class Perplexity:
    """What texts cost.

    Attributes:
        parts: of each unit, by its place.
        unit: what intervals are over: documents; or windows, whose neighbours are alike, where the texts are packed or
            there is but one.
        unanswered: units without an answer, and why; they are left out.
        hash: SHA-256 of the texts and of how they were read.
    """

    parts: Mapping[str, Part]
    unit: Literal["document", "window"]
    unanswered: Mapping[str, str]
    hash: str

    @property
    def total(self) -> Part:
        """Of all units together."""
        return _sum(self.parts.values())

    @property
    def perplexity(self) -> Interval:
        """exp of the nats that a token costs."""
        return Interval(*map(math.exp, self._ratio([part.tokens for part in self.parts.values()])))

    @property
    def bits_per_byte(self) -> Interval:
        """Comparable across tokenizers."""
        return Interval(*(bits_per_byte(one, 1) for one in self._ratio([part.bytes for part in self.parts.values()])))

    def _ratio(self, below: Sequence[int]) -> Interval:
        return bootstrap_ratio([part.nats for part in self.parts.values()], below)


class Window(NamedTuple):
    """Tokens from `start` to `end`, of which those from `new` on are scored."""

    start: int
    new: int
    end: int


@dataclass(frozen=True)
class _Stream:
    """Tokens that windows slide over: ids (T,), bytes (T,) of text that each stands for, scored (T,)."""

    where: str
    ids: list[int]
    bytes: NDArray[np.int64]
    scored: NDArray[np.bool_]

    def part(self, window: Window, log_probs: Sequence[float]) -> Part:
        """Of a window, given ln p of each of its tokens but the first."""
        counted = self.scored[window.new : window.end]
        nats = np.array(log_probs[window.new - window.start - 1 :], dtype=np.float64)[counted]
        return Part(-math.fsum(nats), int(counted.sum()), int(self.bytes[window.new : window.end].sum()))


def windows(length: int, sliding: Sliding) -> Iterator[Window]:
    """The windows over so many tokens; together they score all but the first, each once."""
    start, new = 0, 1
    while new < length:
        end = min(start + sliding.window, length)
        yield Window(start, new, end)
        start, new = start + sliding.stride, end


def measure_perplexity(
    subject: Subject,
    documents: Sequence[Document],
    sliding: Sliding,
    journal: Journal | None = None,
    done: Callable[[int, int], None] = lambda windows, total: None,
) -> Perplexity:
    """Measures texts.

    Args:
        subject: with a tokenizer.
        documents: each at a place of its own.
        sliding: how they are read.
        journal: gets every window as soon as it is measured, and is gone on with.
        done: told how many windows of how many are done.

    Raises:
        UserError: there is no tokenizer, no token to begin with, nothing in the texts, or no answer at all.
        SubjectGoneError: there is nobody to ask any more.
    """
    streams = _streams(documents, _tokenizer_of(subject), packed=sliding.packed)
    unit: Literal["document", "window"] = "window" if len(streams) == 1 else "document"
    jobs = [(stream, window) for stream in streams for window in windows(len(stream.ids), sliding)]
    units: dict[str, list[Part | Unanswered]] = {}
    for (stream, window), part in zip(jobs, _parts(subject, jobs, journal, done), strict=True):
        place = f"{stream.where}[{window.start}:{window.end}]" if unit == "window" else stream.where
        units.setdefault(place, []).append(part)
    found, missing = _sorted_out(units)
    if not found:
        why = next(iter(missing.values()))
        raise UserError(f"no text was answered ({why})", where=subject.name)
    return Perplexity(found, unit, missing, texts_hash(documents, sliding))


def texts_hash(documents: Sequence[Document], sliding: Sliding) -> str:
    """SHA-256 over all that decides the numbers, besides the subject."""
    told = json.dumps([sliding.window, sliding.stride, sliding.packed, [document.text for document in documents]])
    return hashlib.sha256(told.encode()).hexdigest()


def perplexity_result(name: str, found: Perplexity, source: str) -> TaskResult:
    """The same in the form of all results: perplexity and bits per byte of the whole, and each unit's own."""
    outcomes = [
        Outcome(name, where, "", where, "", "", (), _scores(part), (-part.nats,), (part.tokens,))
        for where, part in found.parts.items()
    ]
    count = len(found.parts)
    whole = {"perplexity": Summary(*found.perplexity, count), "bits_per_byte": Summary(*found.bits_per_byte, count)}
    missing = [Missing(where, where, why) for where, why in found.unanswered.items()]
    return TaskResult("perplexity", found.hash, source, tuple(outcomes), (), tuple(missing), whole)


def _scores(part: Part) -> dict[str, float]:
    return {"unit_bits_per_byte": bits_per_byte(part.nats, part.bytes)} if part.bytes else {}


def _tokenizer_of(subject: Subject) -> Tokenizer:
    if subject.tokenizer is None:
        raise UserError("its tokens are not known here", where=subject.name, mend="give its tokenizer")
    return subject.tokenizer


def _parts(
    subject: Subject,
    jobs: Sequence[tuple[_Stream, Window]],
    journal: Journal | None,
    done: Callable[[int, int], None],
) -> Iterator[Part | Unanswered]:
    known = [*map(_read, journal.entries)] if journal else []
    yield from known
    for place in range(len(known), len(jobs), AT_ONCE):
        done(place, len(jobs))
        some = jobs[place : place + AT_ONCE]
        told = subject.log_probs([stream.ids[window.start : window.end] for stream, window in some])
        for (stream, window), one in zip(some, told, strict=True):
            part = _part(stream, window, one)
            if journal:
                journal.add(part.reason if isinstance(part, Unanswered) else list(part))
            yield part
    done(len(jobs), len(jobs))


def _read(entry: Any) -> Part | Unanswered:
    return Unanswered(entry) if isinstance(entry, str) else Part(*entry)


def _part(stream: _Stream, window: Window, told: list[float] | Unanswered) -> Part | Unanswered:
    if isinstance(told, Unanswered):
        return told
    asked = window.end - window.start - 1
    if len(told) != asked:
        return Unanswered(f"it told {len(told)} of {asked} likelihoods: is the window longer than its context?")
    return stream.part(window, told)


def _sorted_out(units: Mapping[str, Sequence[Part | Unanswered]]) -> tuple[dict[str, Part], dict[str, str]]:
    """Units that were answered in whole, and why others were not."""
    found, missing = {}, {}
    for where, parts in units.items():
        reasons = [part.reason for part in parts if isinstance(part, Unanswered)]
        if reasons:
            missing[where] = reasons[0]
        else:
            found[where] = _sum([part for part in parts if isinstance(part, Part)])
    return found, missing


def _sum(parts: Collection[Part]) -> Part:
    return Part(math.fsum(p.nats for p in parts), sum(p.tokens for p in parts), sum(p.bytes for p in parts))


def _streams(documents: Sequence[Document], tokenizer: Tokenizer, *, packed: bool) -> list[_Stream]:
    first = first_token(tokenizer)
    if not first:
        raise UserError("the tokenizer has no BOS or EOS to begin a text with")
    streams = [_stream(document, tokenizer, first) for document in documents if document.text]
    if not streams:
        raise UserError("there is nothing in the texts")
    return [_joined(streams)] if packed else streams


def _stream(document: Document, tokenizer: Tokenizer, first: list[int]) -> _Stream:
    encoded = tokenizer.encode_with_offsets(document.text)
    lengths = np.array([len(character.encode("utf-8", "surrogatepass")) for character in document.text])
    before = np.concatenate(([0], np.cumsum(lengths)))  # bytes before each character
    ends = np.maximum.accumulate([before[end] for _, end in encoded.offsets], dtype=np.int64)  # (T,)
    ends[-1] = before[-1]  # blanks that belong to no token are paid for too
    scored = np.concatenate(([False], np.ones(len(encoded.ids), dtype=np.bool_)))
    return _Stream(document.where, [*first, *encoded.ids], np.diff(ends, prepend=[0, 0]), scored)


def _joined(streams: Sequence[_Stream]) -> _Stream:
    ids = [token for stream in streams for token in stream.ids]
    lengths, scored = (np.concatenate(each) for each in zip(*((s.bytes, s.scored) for s in streams), strict=True))
    return _Stream("packed", ids, lengths, scored)
