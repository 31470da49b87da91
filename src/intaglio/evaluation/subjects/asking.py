"""Requests to a server that may be busy, stumble, or be gone: patient with the first, bounded with the others."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Event
from typing import Any, Final

from intaglio.data.unpacking import needs
from intaglio.errors import UserError
from intaglio.evaluation.subjects.subject import SubjectGoneError

__all__ = ["Asker", "RefusedError"]

BUSY, OVERLOADED = 429, 503
SETTINGS: Final = {
    401: "give the right --api-key",
    403: "give the right --api-key",
    404: "check the address and the model's name",
    405: "check the address",
}
"""Refusals of every request of the kind, and what the user may do."""


class RefusedError(Exception):
    """This one request has no answer that can be used; the text says why."""


class Asker:
    """A client of one server; for several threads.

    A server that is busy (429, or 503 with a `Retry-After`) is waited for as long as it says there, or else a little
    longer each time. A broken connection and a status of 500 or more are tried again with growing pauses.

    Args:
        url: the server's address, with or without `/v1`.
        api_key: if it wants one.
        tries: of a request that fails.
        patience_s: how long a busy server is waited for, all of a request's waiting together.
        pause_s: before the second try; doubled before each further one.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        tries: int = 5,
        patience_s: float = 900.0,
        pause_s: float = 0.5,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        httpx2 = needs("httpx2", "httpx2", url, extra="eval")
        self.url = url.rstrip("/").partition("/v1")[0]
        if "://" not in self.url:
            self.url = f"http://{self.url}"
        self._tries, self._patience_s, self._pause_s, self._sleep = tries, patience_s, pause_s, sleep
        key = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx2.Timeout(600, connect=30)
        self._client = httpx2.Client(base_url=self.url, headers=key, timeout=timeout)
        self._gone = Event()

    def post(self, path: str, body: Any) -> dict[str, Any]:
        """What the server answers to `body`.

        Raises:
            RefusedError: it refuses this request, or its answer is no JSON object.
            SubjectGoneError: it does not answer, or is busy for too long; from then on always.
            UserError: it would refuse every such request.
        """
        return self._asked("POST", path, body, self._tries)

    def get(self, path: str, tries: int | None = None) -> dict[str, Any]:
        """The same without a body."""
        return self._asked("GET", path, None, tries or self._tries)

    def _asked(self, method: str, path: str, body: Any, tries: int) -> dict[str, Any]:
        import httpx2

        waited, failed = 0.0, 0
        while True:
            if self._gone.is_set():
                raise SubjectGoneError(f"{self.url} does not answer any more")
            try:
                answer = self._client.request(method, path, json=body)
            except httpx2.TransportError as error:
                problem, stumbled = type(error).__name__, False
            else:
                wait = answer.headers.get("Retry-After")
                if answer.status_code == BUSY or (answer.status_code == OVERLOADED and wait):
                    waited += self._wait(wait, waited)
                    continue
                if answer.status_code < 500:
                    return self._read(answer, path)
                problem, stumbled = f"status {answer.status_code}", True
            failed += 1
            if failed >= tries:
                raise self._end(problem, stumbled, path, failed)
            self._sleep(self._pause_s * 2 ** (failed - 1))

    def _wait(self, told: str | None, waited: float) -> float:
        """Waits for a busy server; the seconds."""
        seconds = _seconds(told)
        if seconds is None:
            seconds = max(self._pause_s, waited)
        if waited + seconds > self._patience_s:
            self._gone.set()
            raise SubjectGoneError(f"{self.url} is busy for more than {self._patience_s:.0f} s")
        self._sleep(seconds)
        return seconds

    def _end(self, problem: str, stumbled: bool, path: str, tries: int) -> Exception:
        """One request may be too much for a server that is well otherwise."""
        if stumbled and path != _MODELS:
            try:
                self._asked("GET", _MODELS, None, 1)
            except (RefusedError, SubjectGoneError, UserError):
                pass
            else:
                return RefusedError(f"{problem} from {path}, {tries} times")
        self._gone.set()
        return SubjectGoneError(f"{self.url} does not answer any more ({problem}, {tries} times)")

    def _read(self, answer: Any, path: str) -> dict[str, Any]:
        if answer.status_code in SETTINGS:
            what = f"the server answers {answer.status_code}{_said(answer)}"
            raise UserError(what, where=f"{self.url}{path}", mend=SETTINGS[answer.status_code])
        if answer.status_code >= 300:
            raise RefusedError(f"status {answer.status_code}{_said(answer)}")
        try:
            told = answer.json()
        except ValueError as error:
            raise RefusedError("the answer is no JSON") from error
        if not isinstance(told, dict):
            raise RefusedError("the answer is no JSON object")
        return told


_MODELS: Final = "/v1/models"


def _seconds(told: str | None) -> float | None:
    """`Retry-After`: seconds, or a date (RFC 9110, section 10.2.3)."""
    if told is None:
        return None
    try:
        return max(float(told), 0.0)
    except ValueError:
        pass
    try:
        return max((parsedate_to_datetime(told) - datetime.now(UTC)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None


def _said(answer: Any) -> str:
    """The server's own words, shortened."""
    try:
        told = answer.json()
        error = told.get("error", told)
        words = error if isinstance(error, str) else error.get("message") or error.get("detail") or ""
    except (ValueError, AttributeError):
        return ""
    return f": {str(words)[:200]}" if words else ""
