"""One streamed request to its end, each piece of the answer with the time at which it came.

What fails is told in the sample and never raised: by the status (`HTTP 503`), or as `timeout`, `cannot connect`,
`connection lost` (before an answer), `broken stream` (within it: lost, cut off before its end, or no JSON), `an error
in the stream` or `empty answer`. An answer without a usage is counted by a tokenizer of the client's, or else by its
pieces.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from intaglio.evaluation.load.clock import now
from intaglio.evaluation.load.latency import Sample
from intaglio.evaluation.load.target import PATHS, Prompt, Target

if TYPE_CHECKING:
    import httpx2

__all__ = ["send"]

_CONTENT = ("content", "text", "reasoning", "reasoning_content", "tool_calls", "refusal")
_WAIT = 1.0  # seconds, where a server that turns us away does not say how long
_TOO_MANY = 429


async def send(
    client: "httpx2.AsyncClient", target: Target, prompt: Prompt, max_tokens: int, due: float | None = None
) -> Sample:
    """One request, sent anew as often as the target allows where the server turns it away.

    Args:
        client: the target's.
        target: whom to ask.
        prompt: what is asked.
        max_tokens: of the answer.
        due: when it should have been sent, in an open loop; times count from then, waits for the server included.
    """
    moment = now()
    sample = Sample(moment if due is None else due, max_tokens, None if due is None else moment)
    body = target.body(prompt, max_tokens)
    try:
        async with asyncio.timeout(target.timeout):
            while (wait := await _try(client, target, body, sample)) is not None:
                sample.retries += 1
                await asyncio.sleep(wait)
    except TimeoutError:
        sample.error = "timeout"
    sample.end = now()
    if not sample.error and not sample.output_tokens:
        _count(sample, target)
    return sample


async def _try(client: "httpx2.AsyncClient", target: Target, body: Mapping[str, Any], sample: Sample) -> float | None:
    """Sends it once; seconds to wait for another try, or None when this was the last."""
    import httpx2

    begun = False
    try:
        async with client.stream("POST", PATHS[target.endpoint], json=body) as answer:
            if answer.status_code == _TOO_MANY and sample.retries < target.retries:
                return _retry_after(answer.headers.get("Retry-After"))
            if answer.status_code != 200:
                sample.error = f"HTTP {answer.status_code}"
                sample.detail = _message(await answer.aread())
            else:
                begun = True
                await _read(sample, answer)
    except httpx2.ConnectError as error:
        sample.error, sample.detail = "cannot connect", str(error)
    except httpx2.TimeoutException:
        sample.error = "timeout"
    except (httpx2.HTTPError, ValueError, LookupError, TypeError, AttributeError) as error:
        sample.error = "broken stream" if begun else "connection lost"
        sample.detail = f"{type(error).__name__}: {error}"[:200]
    return None


async def _read(sample: Sample, answer: "httpx2.Response") -> None:
    waited = answer.headers.get("x-queue-time")  # milliseconds, of text-generation-inference
    sample.queue = float(waited) / 1000 if waited else None
    over = False
    async for moment, event in _events(answer.aiter_raw()):
        over |= event is None or any(choice.get("finish_reason") for choice in event.get("choices") or ())
        if event is not None:
            _see(sample, event, moment)
    if not over and not sample.error:
        sample.error, sample.detail = "broken stream", "it ended without [DONE] or a finish_reason"


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[tuple[float, dict[str, Any] | None]]:
    """The JSON of each server-sent event, with the time at which its last byte came; None for `[DONE]`."""
    rest = b""
    async for piece in pieces:
        moment = now()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line.removeprefix(b"data:").strip()
                yield moment, None if data == b"[DONE]" else json.loads(data)


def _see(sample: Sample, event: Mapping[str, Any], moment: float) -> None:
    if event.get("error") or event.get("object") == "error":
        sample.error, sample.detail = "an error in the stream", _message(json.dumps(event).encode())
    for choice in event.get("choices") or ():
        sample.last = moment
        delta = choice.get("delta") or choice
        if any(delta.get(name) for name in _CONTENT):
            sample.content.append(moment)
            sample.text += delta.get("content") or delta.get("text") or ""
    _see_usage(sample, event.get("usage") or (event.get("x_groq") or {}).get("usage"))


def _see_usage(sample: Sample, usage: Mapping[str, Any] | None) -> None:
    if usage:
        sample.prompt_tokens = usage.get("prompt_tokens") or 0
        sample.output_tokens = usage.get("completion_tokens") or 0
        sample.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        sample.queue = usage.get("queue_time", sample.queue)  # seconds, of Groq


def _count(sample: Sample, target: Target) -> None:
    """What the server does not tell."""
    if not sample.content:
        sample.error = "empty answer"
    elif target.tokenizer is not None and sample.text:
        sample.counted_by = "tokenizer"
        sample.output_tokens = len(target.tokenizer.encode(sample.text, add_special_tokens=False))
    else:
        sample.counted_by, sample.output_tokens = "pieces", len(sample.content)


def _message(body: bytes) -> str:
    """What an error says, without its wrapping."""
    try:
        said: Any = json.loads(body)
        while isinstance(said, Mapping):
            said = said.get("error") or said.get("message") or said.get("detail")
        return str(said or "")[:200]
    except ValueError:
        return body[:200].decode("utf-8", "replace")


def _retry_after(value: str | None) -> float:
    """Seconds; the header has a number of them, or a date (RFC 9110, section 10.2.3)."""
    try:
        return max(0.0, float(value or _WAIT))
    except ValueError:
        pass
    try:
        until = parsedate_to_datetime(value or "")
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return _WAIT
