"""From an HTTP request to the engine and back: admitted, begun before the answer begins, aborted when nobody waits."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

import anyio
from starlette.requests import Request

from intaglio.engine.interface import Output
from intaglio.serving.client import EngineUnavailable
from intaglio.serving.errors import ClientGone
from intaglio.serving.prompts import Job
from intaglio.serving.protocol.common import PromptTokensDetails, Usage
from intaglio.serving.protocol.sampling import SamplingBody
from intaglio.serving.service import Service

__all__ = ["Outputs", "Placed", "Tally", "begin", "gathered", "speaking", "stop_reason", "unless_gone"]

logger = logging.getLogger(__name__)
T = TypeVar("T")
Placed = tuple[int, Output]


class Outputs:
    """What the engine makes of a request's prompts: `(place of the prompt, output)`, as they come.

    The first of them is there already, so whatever the engine refuses it has refused before any answer has begun.
    """

    def __init__(self, first: Placed, rest: AsyncGenerator[Placed, None]) -> None:
        self._first: Placed | None = first
        self._rest = rest

    def __aiter__(self) -> AsyncIterator[Placed]:
        return self

    async def __anext__(self) -> Placed:
        first, self._first = self._first, None
        place, output = await anext(self._rest) if first is None else first
        if output.finish_reason == "abort":
            raise EngineUnavailable("the engine has given the request up")
        return place, output

    async def aclose(self) -> None:
        """Aborts what still runs, even for a task that is being cancelled."""
        with anyio.CancelScope(shield=True):
            await self._rest.aclose()


def speaking(request: Request, service: Service, model: str | None) -> Service:
    """The service as the model that a request is for gives it; the log will say which adapter that was.

    Raises:
        EngineUnavailable: it is loading, draining or dead.
        ApiError: HTTP 404, there is no such model.
    """
    service.check_ready()
    chosen = service.of(model)
    request.state.adapter = chosen.adapter
    return chosen


async def begin(request: Request, service: Service, jobs: Sequence[Job]) -> Outputs:
    """Gives the jobs to the engine and waits for the first output.

    Raises:
        ApiError: no room for so many (400, or 429 for the moment).
        UserError: the engine refuses one.
        EngineUnavailable: there is no engine to give them to.
        ClientGone: nobody waits.
    """
    outputs = _admitted(service, jobs, request.state.request_id, request.state.arrival)
    try:
        return Outputs(await unless_gone(request, anext(outputs)), outputs)
    except BaseException:
        await outputs.aclose()
        raise


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What `work` gives; it is cancelled when the client has gone, which nothing else would notice before the end.

    Raises:
        ClientGone: it has.
    """
    working = asyncio.ensure_future(_run(work))
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        await _cancelled(working, gone)


def stop_reason(service: Service, body: SamplingBody, output: Output) -> int | str | None:
    """What ended a choice, where the request named it: the ends of an adapter's own texts are not told."""
    reason = output.stop_reason
    return None if reason in service.ends and reason not in (body.stop_token_ids or ()) else reason


async def gathered(outputs: Outputs) -> list[Placed]:
    """Each choice's outputs in one, in order, when the last has ended."""
    parts: dict[tuple[int, int], list[Output]] = {}
    async for place, output in outputs:
        parts.setdefault((place, output.choice), []).append(output)
    return [(place, _joined(parts[place, choice])) for place, choice in sorted(parts)]


def _joined(parts: Sequence[Output]) -> Output:
    logprobs = [one for part in parts for one in part.logprobs or ()]
    return replace(
        parts[0],
        token_ids=[token_id for part in parts for token_id in part.token_ids],
        text="".join([part.text for part in parts]),
        logprobs=None if parts[0].logprobs is None else logprobs,
        finish_reason=parts[-1].finish_reason,
        stop_reason=parts[-1].stop_reason,
    )


class Tally:
    """The tokens of a request's prompts and answers."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._made = 0

    def add(self, place: int, output: Output) -> None:
        """Counts an output of the prompt at `place`."""
        self._prompts.setdefault(place, (output.prompt_tokens, output.cached_tokens))
        self._made += len(output.token_ids)

    def usage(self) -> Usage:
        """All so far."""
        read = sum(tokens for tokens, _ in self._prompts.values())
        cached = PromptTokensDetails(cached_tokens=sum(cached for _, cached in self._prompts.values()))
        return Usage(
            prompt_tokens=read,
            completion_tokens=self._made,
            total_tokens=read + self._made,
            prompt_tokens_details=cached,
        )

    def in_chunk(self, body: SamplingBody) -> dict[str, Any]:
        """What a chunk that adds to a choice says of the usage, by what the request asked for."""
        if body.continuous_usage:
            return {"usage": self.usage()}
        return {"usage": None} if body.include_usage else {}


async def _admitted(
    service: Service, jobs: Sequence[Job], request_id: str, arrival: float
) -> AsyncGenerator[Placed, None]:
    """The outputs of all jobs, for which room is held meanwhile."""
    service.check_ready()
    with service.admission.admit(sum(job.params.n for job in jobs)):
        streams = [_started(service, job, f"{request_id}-{place}", arrival) for place, job in enumerate(jobs)]
        merged = _at(0, streams[0]) if len(streams) == 1 else _merged(streams)
        async with aclosing(merged):
            async for placed in merged:
                yield placed


def _started(service: Service, job: Job, request_id: str, arrival: float) -> AsyncGenerator[Output, None]:
    if service.log_prompts:
        logger.info("%s reads %r", request_id, service.tokenizer.decode(job.prompt_ids, skip_special_tokens=False))
    return service.engine.generate(
        request_id, job.prompt_ids, job.params, priority=job.priority, adapter=service.adapter, arrival=arrival
    )


async def _merged(streams: Sequence[AsyncGenerator[Output, None]]) -> AsyncGenerator[Placed, None]:
    """The outputs of all streams as they come; the first error ends them all."""
    queue: asyncio.Queue[Placed | Exception | None] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(place, stream, queue)) for place, stream in enumerate(streams)]
    try:
        left = len(pumps)
        while left:
            come = await queue.get()
            if isinstance(come, Exception):
                raise come
            left -= come is None
            if come is not None:
                yield come
    finally:
        await _cancelled(*pumps)


async def _pump(place: int, stream: AsyncGenerator[Output, None], queue: "asyncio.Queue[Any]") -> None:
    try:
        async for placed in _at(place, stream):
            queue.put_nowait(placed)
        queue.put_nowait(None)
    except Exception as error:
        queue.put_nowait(error)


async def _at(place: int, stream: AsyncGenerator[Output, None]) -> AsyncGenerator[Placed, None]:
    async with aclosing(stream):
        async for output in stream:
            yield place, output


async def _run(work: Awaitable[T]) -> T:
    return await work


async def _disconnected(request: Request) -> None:
    """Comes back when the client has gone. The body has been read: nothing else can come."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _cancelled(*tasks: "asyncio.Future[Any]") -> None:
    """Cancels the tasks and waits until they have ended, even in a task that is being cancelled itself."""
    for task in tasks:
        task.cancel()
    with anyio.CancelScope(shield=True):
        await asyncio.gather(*tasks, return_exceptions=True)
