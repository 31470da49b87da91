"""Load on an OpenAI-style server: many streamed requests, each piece of each answer with the time at which it came.

A closed loop keeps so many requests running; an open loop sends them at random moments (Poisson) at a mean rate,
however long the answers take, and counts time from the moment when a request was due.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from intaglio.errors import UserError
from intaglio.evaluation.latency import Sample

if TYPE_CHECKING:
    import httpx2

__all__ = ["Endpoint", "Prompt", "Target", "closed_loop", "name_model", "open_loop", "random_prompts", "send"]

Endpoint = Literal["chat", "completions"]
Prompt = str | list[int] | list[dict[str, Any]]
"""A text, token ids, or messages."""

_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_CONTENT = ("content", "text", "reasoning", "reasoning_content", "tool_calls", "refusal")
_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body "
    "information back parent face others level office door health person art war history party result change morning "
    "reason research girl guy moment air teacher force education"
).split()


@dataclass
class Target:
    """A server, and how it is asked.

    Attributes:
        url: its address, with or without `/v1/...`.
        model: the model's name; None for the one that it names first.
        endpoint: which of its two kinds of completion.
        api_key: if it wants one.
        fields: more fields of each request.
    """

    url: str
    model: str | None = None
    endpoint: Endpoint = "chat"
    api_key: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/").partition("/v1")[0]
        if "://" not in self.url:
            self.url = f"http://{self.url}"

    def client(self) -> "httpx2.AsyncClient":
        """A client with as many connections as there are requests; to be closed."""
        import httpx2

        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx2.Timeout(None, connect=30)
        return httpx2.AsyncClient(
            base_url=self.url, headers={"Accept-Encoding": "identity", **key}, limits=limits, timeout=timeout
        )

    def body(self, prompt: Prompt, max_tokens: int) -> dict[str, Any]:
        """The JSON of one request."""
        said = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        what = {"messages": said} if self.endpoint == "chat" else {"prompt": prompt}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self.model, **what, "max_tokens": max_tokens, "temperature": 0, **stream, **self.fields}


async def name_model(client: "httpx2.AsyncClient", target: Target) -> None:
    """Fills in the model's name where it is not given.

    Raises:
        UserError: the server does not answer, or names none.
    """
    if target.model is None:
        listed = await _ask(client, target, "GET", "/v1/models")
        if not listed.get("data"):
            raise UserError("the server names no model", where=target.url, mend="give --model")
        target.model = listed["data"][0]["id"]


async def random_prompts(
    client: "httpx2.AsyncClient",
    target: Target,
    count: int,
    tokens: int,
    shared: int = 0,
    seed: int = 0,
    fresh: str = "",
) -> list[Prompt]:
    """Prompts of `tokens` random words that are one token each, the first `shared` of them being the same in all.

    For completions they are token ids, and their length is exact; in a chat the template's own tokens come on top.
    The shared words depend on `seed` alone, the others on `fresh` too.

    Raises:
        UserError: the server does not say how it tokenises.
    """
    dice = random.Random(seed)
    vocabulary = await _one_token_words(client, target)
    start = dice.choices(vocabulary, k=shared)
    dice.seed(f"{seed} {fresh}")
    rows = [start + dice.choices(vocabulary, k=tokens - shared) for _ in range(count)]
    if target.endpoint == "completions":
        return [[token for _, token in row] for row in rows]
    return ["".join(word for word, _ in row) for row in rows]


async def _one_token_words(client: "httpx2.AsyncClient", target: Target) -> list[tuple[str, int]]:
    found = []
    for word in (f" {word}" for word in _WORDS):
        asked = {"model": target.model, "prompt": word, "add_special_tokens": False}
        ids = (await _ask(client, target, "POST", "/tokenize", asked)).get("tokens", [])
        found += [(word, ids[0])] if len(ids) == 1 else []
    if len(found) < 2:
        raise UserError("the words that we know are no tokens of this model", where=target.url, mend="give --prompts")
    return found


async def _ask(
    client: "httpx2.AsyncClient", target: Target, method: str, path: str, body: Any = None
) -> dict[str, Any]:
    import httpx2

    try:
        answer = await client.request(method, path, json=body)
        answer.raise_for_status()
        return answer.json()
    except httpx2.HTTPStatusError as error:
        where = f"{target.url}{path}"
        raise UserError(f"the server answers with {error.response.status_code}", where=where) from error
    except (httpx2.HTTPError, ValueError) as error:
        raise UserError(f"no answer: {type(error).__name__}", where=f"{target.url}{path}") from error


async def send(
    client: "httpx2.AsyncClient", target: Target, prompt: Prompt, max_tokens: int, due: float | None = None
) -> Sample:
    """One request to its end. What fails is told in the sample, not raised."""
    import httpx2

    sample = Sample(time.perf_counter() if due is None else due, max_tokens)
    body = target.body(prompt, max_tokens)
    try:
        async with client.stream("POST", _PATHS[target.endpoint], json=body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                sample.error = f"HTTP {answer.status_code}"
            else:
                async for event in _events(answer.aiter_raw()):
                    _see(sample, event, time.perf_counter())
                if not sample.error and not sample.output_tokens:
                    sample.error = "no usage in the stream"
    except (httpx2.HTTPError, ValueError) as error:
        sample.error = type(error).__name__
    sample.end = time.perf_counter()
    return sample


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent event, up to `[DONE]`."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data:").strip()
            if line.startswith(b"data:") and data != b"[DONE]":
                yield json.loads(data)


def _see(sample: Sample, event: Mapping[str, Any], now: float) -> None:
    if "error" in event:
        sample.error = "an error in the stream"
    for choice in event.get("choices") or ():
        sample.last = now
        if _has_content(choice.get("delta") or choice):
            sample.content.append(now)
    if usage := event.get("usage"):
        sample.prompt_tokens = usage["prompt_tokens"]
        sample.output_tokens = usage["completion_tokens"]
        sample.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def _has_content(delta: Mapping[str, Any]) -> bool:
    return any(delta.get(name) for name in _CONTENT)


Sender = Callable[[Prompt, float | None], Awaitable[Sample]]


async def closed_loop(sender: Sender, prompts: Sequence[Prompt], concurrency: int) -> list[Sample]:
    """Sends all prompts, so many at once: the next one goes when an answer is over."""
    left: Iterator[Prompt] = iter(prompts)

    async def one_after_another() -> list[Sample]:
        return [await sender(prompt, None) for prompt in left]

    lanes = await asyncio.gather(*(one_after_another() for _ in range(concurrency)))
    return [sample for lane in lanes for sample in lane]


async def open_loop(sender: Sender, prompts: Sequence[Prompt], rate: float, seed: int = 0) -> list[Sample]:
    """Sends all prompts at random moments, `rate` a second in the mean, whatever still runs."""
    dice, due = random.Random(seed), time.perf_counter()
    running = []
    for prompt in prompts:
        due += dice.expovariate(rate)
        await asyncio.sleep(due - time.perf_counter())
        running.append(asyncio.ensure_future(sender(prompt, due)))
    return await asyncio.gather(*running)
