"""A storm of requests: long and short, streamed and not, left half-way, and wrong in many ways."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2

__all__ = ["gauges", "storm", "until_idle"]

_JSON = {"Content-Type": "application/json"}
_WRONG: list[Any] = [
    b"{",
    b"null",
    b"[]",
    b'{"prompt": "\\ud800"}',
    {"prompt": []},
    {"prompt": "x", "n": 10**6},
    {"prompt": "x", "max_tokens": -1},
    {"prompt": "x", "temperature": "hot"},
    {"prompt": "x", "model": "another"},
    {"prompt": "x", "stop": ["s"] * 1000},
    {"prompt": [10**9]},
    {"prompt": [1] * 5000, "stream": True},
    {"prompt": [[1], "x"]},
    {"prompt": "x", "top_p": 0},
]
"""Bodies for completions, each of them a client's mistake."""


async def storm(url: str, requests: int, concurrency: int, seed: int = 0) -> Counter[str]:
    """Sends so many requests of all kinds and counts how they ended; `wrong: ...` names what must not be."""
    dice = random.Random(seed)
    kinds = list(_KINDS)
    left = iter(dice.choices(kinds, weights=[_KINDS[kind] for kind in kinds], k=requests))
    ended: Counter[str] = Counter()
    limits = httpx2.Limits(max_connections=concurrency)
    async with httpx2.AsyncClient(base_url=url, timeout=120, limits=limits) as client:

        async def lane(number: int) -> None:
            own = random.Random(f"{seed} {number}")
            for kind in left:
                ended[await kind(client, own)] += 1

        await asyncio.gather(*(lane(number) for number in range(concurrency)))
    return ended


async def gauges(url: str) -> dict[str, float]:
    """What `/metrics` says without buckets, by name."""
    async with httpx2.AsyncClient() as client:
        lines = (await client.get(f"{url}/metrics", timeout=60)).text.splitlines()
    rows = [line.removeprefix("vllm:").partition("{")[::2] for line in lines if line.startswith("vllm:")]
    return {name: float(rest.rpartition(" ")[2]) for name, rest in rows if not name.endswith("_bucket")}


async def until_idle(url: str) -> None:
    """Waits until nothing runs and every block is free."""
    async with asyncio.timeout(60):
        while True:
            found = await gauges(url)
            if found["num_requests_running"] == found["num_requests_waiting"] == found["kv_cache_usage_perc"] == 0:
                return
            await asyncio.sleep(0.02)


def _body(dice: random.Random, tokens: int) -> dict[str, Any]:
    """A random request that the server can answer."""
    prompt = [dice.randrange(3, 200) for _ in range(dice.randrange(1, 40))]
    extra: dict[str, Any] = dice.choice(
        [{}, {"temperature": 0}, {"logprobs": 3}, {"n": 2}, {"seed": 1, "top_p": 0.5}, {"echo": True}, {"stop": ["a"]}]
    )
    return {"prompt": prompt, "max_tokens": dice.randrange(1, tokens), **extra}


async def _whole(client: httpx2.AsyncClient, dice: random.Random) -> str:
    answer = await client.post("/v1/completions", json=_body(dice, 24))
    return "whole" if answer.status_code == 200 else f"wrong: {answer.status_code} for a good request"


async def _streamed(client: httpx2.AsyncClient, dice: random.Random) -> str:
    async with client.stream("POST", "/v1/completions", json={**_body(dice, 24), "stream": True}) as answer:
        lines = [line async for line in answer.aiter_lines() if line]
    return "streamed" if lines[-1] == "data: [DONE]" else f"wrong: a stream ended with {lines[-1]}"


async def _left(client: httpx2.AsyncClient, dice: random.Random) -> str:
    """Hangs up in the middle of a stream."""
    body = {"prompt": [5, 6, 7], "max_tokens": 60, "ignore_eos": True, "stream": True}
    patience = dice.randrange(1, 4)
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        if answer.status_code != 200:
            return f"wrong: {answer.status_code} for a good stream"
        async for line in answer.aiter_lines():
            patience -= bool(line)
            if patience == 0:
                break
    return "left"


async def _impatient(client: httpx2.AsyncClient, dice: random.Random) -> str:
    """Hangs up before an answer that is not streamed."""
    body = {"prompt": [5, 6, 7], "max_tokens": 60, "ignore_eos": True}
    try:
        await client.post("/v1/completions", json=body, timeout=dice.uniform(0.001, 0.05))
    except httpx2.TimeoutException:
        return "impatient"
    return "whole"


async def _mistaken(client: httpx2.AsyncClient, dice: random.Random) -> str:
    wrong = dice.choice(_WRONG)
    sent = {"content": wrong, "headers": _JSON} if isinstance(wrong, bytes) else {"json": wrong}
    answer = await client.post("/v1/completions", **sent)
    is_error = answer.status_code in (400, 404) and set(answer.json()) == {"error"}
    return "mistaken" if is_error else f"wrong: {answer.status_code} for {str(wrong)[:50]}"


async def _embedded(client: httpx2.AsyncClient, dice: random.Random) -> str:
    answer = await client.post("/v1/embeddings", json={"input": [dice.randrange(3, 200) for _ in range(9)]})
    return "embedded" if answer.status_code == 200 else f"wrong: {answer.status_code} for an embedding"


_KINDS: dict[Callable[[httpx2.AsyncClient, random.Random], Awaitable[str]], int] = {
    _whole: 6,
    _streamed: 6,
    _left: 3,
    _impatient: 2,
    _mistaken: 3,
    _embedded: 1,
}
"""How often each comes."""
