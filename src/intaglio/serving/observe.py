"""What is told of each request: its number in a header, and one line in the log, without anything of what it says."""

import logging
import time
import traceback
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from intaglio.serving.errors import as_api_error, error_response

__all__ = ["Observe", "log_failure"]

logger = logging.getLogger(__name__)


class Observe:
    """Numbers requests, notes when they came, logs how they ended, and answers for what breaks.

    Args:
        app: answers the requests.
        log_messages: whether an exception's own words, which may quote a prompt, are logged too.
    """

    def __init__(self, app: ASGIApp, log_messages: bool = False) -> None:
        self._app = app
        self._log_messages = log_messages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        arrival, request_id = time.monotonic(), uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state.update(arrival=arrival, request_id=request_id, log_messages=self._log_messages, adapter=None)
        status = 0

        async def numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, numbered)
        except Exception as error:
            log_failure(scope, error)
            if status:  # the answer has begun: the connection is all that can still be closed
                raise
            await error_response(as_api_error(error))(scope, receive, numbered)
        finally:
            took = time.monotonic() - arrival
            under = f" under {state['adapter']}" if state["adapter"] else ""
            logger.info("%s %s %r %d in %.3f s%s", request_id, scope["method"], scope["path"], status, took, under)


def log_failure(scope: Scope, error: Exception) -> None:
    """Logs where an unexpected exception came from."""
    state = scope["state"]
    words = f": {error}" if state["log_messages"] else ""
    places = "".join(traceback.format_tb(error.__traceback__))
    logger.error("%s failed with %s%s\n%s", state["request_id"], type(error).__name__, words, places)
