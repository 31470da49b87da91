"""Answers on their way out: whole, or as server-sent events while they are made."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from intaglio.serving.errors import as_api_error
from intaglio.serving.generation import Outputs, unless_gone
from intaglio.serving.observe import log_failure
from intaglio.serving.protocol.common import Answer, ErrorAnswer

__all__ = ["EventStream", "Maker", "answer", "json_answer"]

_DONE = b"data: [DONE]\n\n"
# proxies must pass each token on when it comes
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def json_answer(answer: Answer) -> Response:
    """The whole answer."""
    return Response(answer.json_bytes(), media_type="application/json")


class Maker(Protocol):
    """Makes answers of what the engine says."""

    async def whole(self, outputs: Outputs) -> Answer:
        """The answer when the engine has said all."""

    def chunks(self, outputs: Outputs) -> AsyncGenerator[Answer, None]:
        """The answer bit by bit."""


async def answer(request: Request, maker: Maker, outputs: Outputs, *, stream: bool) -> Response:
    """The answer to a request, whole or as a stream. Whoever does not wait for it aborts it.

    Raises:
        EngineUnavailable: the engine dies before the whole answer is there.
        ClientGone: nobody waits.
    """
    if stream:
        return EventStream(request, maker.chunks(outputs), outputs)
    try:
        return json_answer(await unless_gone(request, maker.whole(outputs)))
    finally:
        await outputs.aclose()


class EventStream(StreamingResponse):
    """Chunks as events, then `[DONE]`; or, when something goes wrong on the way, an error object and the end.

    Args:
        request: whose client may go away; then the outputs are closed, which aborts them.
        chunks: made from `outputs`.
        outputs: closed at the end, whatever happens.
    """

    def __init__(self, request: Request, chunks: AsyncGenerator[Answer, None], outputs: Outputs) -> None:
        super().__init__(_events(request, chunks), headers=_HEADERS, media_type="text/event-stream")
        self._outputs = outputs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._outputs.aclose()


async def _events(request: Request, chunks: AsyncGenerator[Answer, None]) -> AsyncIterator[bytes]:
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield _event(chunk)
        yield _DONE
    except Exception as error:
        known = as_api_error(error)
        if known.status_code == 500:
            log_failure(request.scope, error)
        yield _event(ErrorAnswer.model_validate(known.body))


def _event(data: Answer) -> bytes:
    return b"data: " + data.json_bytes() + b"\n\n"
