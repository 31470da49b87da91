"""Service-level objectives: what an answer may take, how many keep to it, and the most load at which they do.

Goodput is the answers a second that keep every target (Zhong et al., DistServe, arXiv 2401.09670); the share of the
requests that do is the attainment, of which failed ones are a part that does not.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from intaglio.errors import UserError
from intaglio.evaluation.load.latency import Sample

__all__ = ["Targets", "goodput", "highest", "parse_targets", "rate_middle", "whole_middle"]

_UNITS = {"ms": 1e-3, "s": 1.0}

Load = TypeVar("Load", int, float)


@dataclass(frozen=True)
class Targets:
    """What each answer may take at most, in seconds; None for any.

    Attributes:
        ttft: to the first content.
        tpot: a token behind it; an answer of one token keeps to any.
        latency: to the last piece.
        attainment: the share of requests that has to keep all of these.
    """

    ttft: float | None = None
    tpot: float | None = None
    latency: float | None = None
    attainment: float = 0.99

    def met(self, sample: Sample) -> bool:
        """Whether a request kept all of them."""
        return not sample.error and all(
            limit is None or (took is not None and took <= limit)
            for limit, took in [
                (self.ttft, sample.ttft),
                (self.tpot, sample.tpot or 0.0),
                (self.latency, sample.latency),
            ]
        )

    def said(self) -> dict[str, float]:
        """Those that there are, and the attainment, for a report."""
        given = {"ttft_s": self.ttft, "tpot_s": self.tpot, "latency_s": self.latency, "attainment": self.attainment}
        return {name: value for name, value in given.items() if value is not None}


def parse_targets(text: str, attainment: float = 0.99, where: str = "") -> Targets:
    """Reads `ttft=500ms,tpot=50ms,latency=10s`.

    Raises:
        UserError: it is no list of targets; names `where`.
    """
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        unit = "ms" if value.endswith("ms") else "s"
        try:
            if name not in ("ttft", "tpot", "latency") or not value.endswith(unit):
                raise ValueError
            found[name] = float(value.removesuffix(unit)) * _UNITS[unit]
        except ValueError as error:
            mend = "such as ttft=500ms,tpot=50ms,latency=10s"
            raise UserError(f"{part.strip()!r} is no target", where=where, mend=mend) from error
    return Targets(**found, attainment=attainment)


def goodput(samples: Sequence[Sample], targets: Targets, duration: float) -> dict[str, Any]:
    """The answers a second that kept the targets, and the share of all requests that did.

    Args:
        samples: of one level.
        targets: which.
        duration: of the level, in seconds.
    """
    met = sum(map(targets.met, samples))
    share = met / len(samples) if samples else 0.0
    return {
        "targets": targets.said(),
        "met": met,
        "attainment": share,
        "kept": bool(samples) and share >= targets.attainment,
        "requests_per_second": met / duration if duration > 0 else None,
    }


async def highest(
    keeps: Callable[[Load], Awaitable[bool]], low: Load, high: Load, middle: Callable[[Load, Load], Load | None]
) -> Load | None:
    """The most load that keeps the targets: doubled until it does not, then bisected.

    Args:
        keeps: measures a load; each is asked once at most.
        low: the least load; None is the answer where not even this keeps.
        high: the most that is tried.
        middle: a load between one that keeps and one that does not, or None where they are close enough.
    """
    if not await keeps(low):
        return None
    best, broken = low, None
    while broken is None and best < high:
        probe = min(2 * best, high)
        best, broken = (probe, None) if await keeps(probe) else (best, probe)
    while broken is not None and (between := middle(best, broken)) is not None:
        best, broken = (between, broken) if await keeps(between) else (best, between)
    return best


def whole_middle(kept: int, broken: int) -> int | None:
    """Between whole numbers, until they are neighbours."""
    return (kept + broken) // 2 if broken - kept > 1 else None


def rate_middle(kept: float, broken: float) -> float | None:
    """Between rates, until they are within a twentieth of each other."""
    return (kept * broken) ** 0.5 if broken > 1.05 * kept else None
