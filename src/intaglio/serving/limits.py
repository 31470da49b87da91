"""How much one request, and all of them together, may ask for."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from intaglio.serving.errors import ApiError, error_response

__all__ = ["Admission", "BodyLimit", "Limits"]


@dataclass(frozen=True)
class Limits:
    """What is refused before anything is done for it.

    Attributes:
        body_bytes: of one request.
        choices: `n`, of one prompt.
        prompts: in one request.
        sequences: prompts times choices, of all requests that run or wait.
        retry_after_s: when those who were refused should come again.
    """

    body_bytes: int = 16 * 2**20
    choices: int = 128
    prompts: int = 1024
    sequences: int = 2048
    retry_after_s: int = 1

    def check_choices(self, n: int) -> None:
        """Refuses too many choices: HTTP 400."""
        if n > self.choices:
            raise ApiError(400, f"n is {n}, and at most {self.choices} choices are made", param="n")

    def check_prompts(self, count: int, param: str) -> None:
        """Refuses too many prompts: HTTP 400."""
        if count > self.prompts:
            raise ApiError(400, f"{count} prompts are more than the {self.prompts} that are taken at once", param=param)


class Admission:
    """Counts what runs and waits, and turns away what would be too much."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.admitted = 0

    @contextmanager
    def admit(self, sequences: int) -> Iterator[None]:
        """Holds room for so many sequences.

        Raises:
            ApiError: there is none now (429), or never (400).
        """
        most = self._limits.sequences
        if sequences > most:
            raise ApiError(400, f"{sequences} choices are more than the {most} that the server has room for", param="n")
        if self.admitted + sequences > most:
            seconds = str(self._limits.retry_after_s)
            raise ApiError(429, "too many requests are waiting", code="queue_full", headers={"Retry-After": seconds})
        self.admitted += sequences
        try:
            yield
        finally:
            self.admitted -= sequences


class BodyLimit:
    """Refuses bodies that are too long, by what they say of themselves and by what comes: HTTP 413.

    Args:
        app: answers the others.
        most: bytes.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most
        self._digits = len(str(most))
        self._error = ApiError(413, f"the body is longer than {most} bytes", headers={"Connection": "close"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._is_too_long(scope):
            await error_response(self._error)(scope, receive, send)
        else:
            await self._app(scope, self._counted(receive), send)

    def _is_too_long(self, scope: Scope) -> bool:
        said = Headers(scope=scope).get("content-length", "0").lstrip("0")
        return len(said) > self._digits or (said.isdecimal() and int(said) > self._most)

    def _counted(self, receive: Receive) -> Receive:
        come = 0

        async def counted() -> Message:
            nonlocal come
            message = await receive()
            come += len(message.get("body", b""))
            if come > self._most:
                raise self._error
            return message

        return counted
