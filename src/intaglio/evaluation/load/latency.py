"""What the times of many streamed answers come to; every figure has one definition, given here.

- TTFT: from the sending of a request to the first piece of its answer that has content (text, reasoning or a call of a
  function). Without such a piece there is no TTFT; it is never 0.
- Latency: from the sending to the last piece that belongs to a choice. A last message with the usage does not count.
- TPOT: (latency - TTFT) / (tokens - 1), for answers of two tokens or more; others have none.
- ITL: the time between two pieces with content, of all answers together. A piece may hold several tokens.
- Lateness: from the moment when a request was due to its sending; only open loops have it. There, every other time
  begins when the request was due, so that a client that falls behind hides nothing.
- Queue: what the server says that a request waited; see `queueing`.
- Duration: from the first sending to the end of the last answer. Throughputs are successful requests, and their tokens
  as the server's usage counts them, over the duration.
- Percentiles interpolate linearly between the two nearest answers.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

__all__ = ["ENOUGH", "PERCENTILES", "Sample", "Spread", "spread", "summary"]

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)

ENOUGH = 100
"""Answers from which on a 99th percentile is more than the slowest one."""

Spread = dict[str, float | int | None]
"""`count`, `mean`, `min`, `p1` and the other `PERCENTILES`, `max`; None where `count` is 0."""


@dataclass
class Sample:
    """One request, as the client saw it; times are seconds of one monotonic clock.

    Attributes:
        start: when it was sent; in an open loop, when it was due.
        wanted_tokens: what it asked for at most.
        sent: when it went out, where it had been due before.
        content: when each piece with content came.
        last: when the last piece of a choice came.
        end: when the answer was over.
        prompt_tokens: as the server counts them.
        output_tokens: as the server counts them; see `counted_by`.
        cached_tokens: of the prompt, those that the server says it had.
        counted_by: where the server tells no usage: the client's tokenizer, or the pieces with content.
        queue: seconds that the server says it waited.
        retries: how often it was sent anew.
        turn: its place in a conversation.
        text: what was answered, reasoning left out.
        error: why it failed, or nothing.
        detail: what the server said about that.
    """

    start: float
    wanted_tokens: int
    sent: float | None = None
    content: list[float] = field(default_factory=list)
    last: float | None = None
    end: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    counted_by: Literal["usage", "tokenizer", "pieces"] = "usage"
    queue: float | None = None
    retries: int = 0
    turn: int = 0
    text: str = ""
    error: str = ""
    detail: str = ""

    @property
    def ttft(self) -> float | None:
        """Seconds to the first content."""
        return self.content[0] - self.start if self.content else None

    @property
    def latency(self) -> float | None:
        """Seconds to the last piece."""
        return None if self.last is None else self.last - self.start

    @property
    def tpot(self) -> float | None:
        """Seconds a token, behind the first."""
        if self.ttft is None or self.latency is None or self.output_tokens < 2:
            return None
        return (self.latency - self.ttft) / (self.output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Seconds between the pieces with content."""
        return np.diff(self.content).tolist()

    @property
    def lateness(self) -> float | None:
        """Seconds by which it was sent too late."""
        return None if self.sent is None else self.sent - self.start


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """The figures of one run; see the module for what they mean. Those that nothing is known of are None."""
    good = [sample for sample in samples if not sample.error]
    duration = max(s.end for s in samples) - min(s.start for s in samples) if samples else 0.0
    return {
        "requests": len(samples),
        "failed": len(samples) - len(good),
        **_errors(samples),
        "retries": sum(s.retries for s in samples),
        "duration_s": duration,
        "mean_concurrency": _per(sum(s.end - s.start for s in samples), duration),
        **_tokens(good, duration),
        "ttft_s": spread(s.ttft for s in good),
        "tpot_s": spread(s.tpot for s in good),
        "itl_s": spread(gap for s in good for gap in s.gaps),
        "latency_s": spread(s.latency for s in good),
        "queue_s": spread(s.queue for s in good),
        "lateness_s": spread(s.lateness for s in samples),
        **_turns(good),
    }


def _errors(samples: Sequence[Sample]) -> dict[str, Any]:
    """How many of each kind, and what was first said about it."""
    kinds = Counter(s.error for s in samples if s.error)
    details = {s.error: s.detail for s in reversed(samples) if s.detail}
    return {"errors": dict(kinds), "error_details": details}


def _tokens(good: Sequence[Sample], duration: float) -> dict[str, Any]:
    read, made = sum(s.prompt_tokens for s in good), sum(s.output_tokens for s in good)
    return {
        "requests_per_second": _per(len(good), duration),
        "output_tokens_per_second": _per(made, duration),
        "total_tokens_per_second": _per(read + made, duration),
        "input_tokens": read,
        "cached_tokens": sum(s.cached_tokens for s in good),
        "output_tokens": made,
        "wanted_output_tokens": sum(s.wanted_tokens for s in good),
        "tokens_counted_by": dict(Counter(s.counted_by for s in good)),
        "input_tokens_each": spread(s.prompt_tokens for s in good),
        "output_tokens_each": spread(s.output_tokens for s in good),
    }


def _turns(good: Sequence[Sample]) -> dict[str, Any]:
    """First turns and later ones apart: the prefix cache knows most of a later turn's prompt."""
    if not any(s.turn for s in good):
        return {}
    first, later = [[s.ttft for s in good if (s.turn > 0) is after] for after in (False, True)]
    return {"first_turn_ttft_s": spread(first), "later_turn_ttft_s": spread(later)}


def _per(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def spread(values: Iterable[float | None]) -> Spread:
    """Mean and percentiles of what is known, and of how many answers it is."""
    known = [value for value in values if value is not None]
    names = ["min", *(f"p{p}" for p in PERCENTILES), "max"]
    if not known:
        return {"count": 0, "mean": None, **dict.fromkeys(names)}
    percentiles = np.percentile(known, (0, *PERCENTILES, 100)).tolist()
    return {"count": len(known), "mean": float(np.mean(known)), **dict(zip(names, percentiles, strict=True))}
