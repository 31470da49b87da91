"""How long requests waited inside the server, where it counts that for Prometheus as vLLM does (ours too)."""

from typing import TYPE_CHECKING

from intaglio.evaluation.load.latency import Spread, spread

if TYPE_CHECKING:
    import httpx2

__all__ = ["Waited", "mean_between", "waited"]

Waited = tuple[float, float]
"""Seconds that all requests so far waited together, and how many they were."""

_NAME = "request_queue_time_seconds"


async def waited(client: "httpx2.AsyncClient") -> Waited | None:
    """What `/metrics` says so far; None where it says nothing."""
    import httpx2

    try:
        answer = await client.get("/metrics")
        return _read(answer.text) if answer.status_code == 200 else None
    except (httpx2.HTTPError, ValueError):
        return None


def _read(text: str) -> Waited | None:
    """The sum and the count of the histogram, of all models together."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].split(" ")[0]
        for part in ("sum", "count"):
            if name.endswith(f"{_NAME}_{part}"):
                found[part] = found.get(part, 0.0) + float(line.rsplit(" ", 1)[1])
    return (found["sum"], found["count"]) if len(found) == 2 else None


def mean_between(before: Waited | None, after: Waited | None) -> Spread:
    """What requests waited between two looks, whoever sent them; only the mean and the count are known."""
    nothing = spread([])
    if before is None or after is None or after[1] <= before[1]:
        return nothing
    count = after[1] - before[1]
    return {**nothing, "count": int(count), "mean": (after[0] - before[0]) / count}
