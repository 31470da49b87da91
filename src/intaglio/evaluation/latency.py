"""What the times of many streamed answers come to; every figure has one definition, given here.

- TTFT: from the sending of a request to the first piece of its answer that has content (text, reasoning or a call of a
  function). Without such a piece there is no TTFT; it is never 0.
- Latency: from the sending to the last piece that belongs to a choice. A last message with the usage does not count.
- TPOT: (latency - TTFT) / (tokens - 1), for answers of two tokens or more; others have none.
- ITL: the time between two pieces with content, of all answers together. A piece may hold several tokens.
- Duration: from the first sending to the end of the last answer. Throughputs are successful requests, and their tokens
  as the server's usage counts them, over the duration.
- Percentiles interpolate linearly between the two nearest answers.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Sample", "summary"]

PERCENTILES = (50, 90, 95, 99)


@dataclass
class Sample:
    """One request, as the client saw it; times are seconds of one monotonic clock.

    Attributes:
        start: when it was sent; in an open loop, when it was due.
        wanted_tokens: what it asked for at most.
        content: when each piece with content came.
        last: when the last piece of a choice came.
        end: when the answer was over.
        prompt_tokens: as the server counts them.
        output_tokens: as the server counts them.
        cached_tokens: of the prompt, those that the server says it had.
        error: why it failed, or nothing.
    """

    start: float
    wanted_tokens: int
    content: list[float] = field(default_factory=list)
    last: float | None = None
    end: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""

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


def summary(samples: Sequence[Sample]) -> dict[str, Any]:
    """The figures of one run; see the module for what they mean. Those that nothing is known of are None."""
    good = [sample for sample in samples if not sample.error]
    duration = max(s.end for s in samples) - min(s.start for s in samples) if samples else 0.0
    read, made = sum(s.prompt_tokens for s in good), sum(s.output_tokens for s in good)
    return {
        "requests": len(samples),
        "failed": len(samples) - len(good),
        "errors": dict(Counter(s.error for s in samples if s.error)),
        "duration_s": duration,
        "requests_per_second": _per(len(good), duration),
        "output_tokens_per_second": _per(made, duration),
        "total_tokens_per_second": _per(read + made, duration),
        "mean_concurrency": _per(sum(s.end - s.start for s in samples), duration),
        "input_tokens": read,
        "cached_tokens": sum(s.cached_tokens for s in good),
        "output_tokens": made,
        "wanted_output_tokens": sum(s.wanted_tokens for s in good),
        "ttft_s": _spread([s.ttft for s in good]),
        "tpot_s": _spread([s.tpot for s in good]),
        "itl_s": _spread([gap for s in good for gap in s.gaps]),
        "latency_s": _spread([s.latency for s in good]),
    }


def _per(amount: float, seconds: float) -> float | None:
    return amount / seconds if seconds > 0 else None


def _spread(values: Sequence[float | None]) -> dict[str, float | int | None]:
    """Mean and percentiles of what is known, and of how many answers it is."""
    known = [value for value in values if value is not None]
    if not known:
        return {"count": 0, "mean": None, **{f"p{p}": None for p in PERCENTILES}}
    percentiles = np.percentile(known, PERCENTILES).tolist()
    found = {f"p{p}": value for p, value in zip(PERCENTILES, percentiles, strict=True)}
    return {"count": len(known), "mean": float(np.mean(known)), **found}
