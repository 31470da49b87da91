"""The server: HTTP from the first moment on (503 while the model loads), an engine that is started again when it dies,
and an end in good order.

The first SIGTERM or SIGINT drains: no new request is taken (503), those that run may end. The second ends at once.
"""

import asyncio
import logging
import os
import signal
import socket
from dataclasses import dataclass, field
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from intaglio.errors import UserError
from intaglio.serving.remote import RemoteEngine

__all__ = ["Server", "listen"]

logger = logging.getLogger(__name__)

_LAST_WORDS = 5
"""Seconds for answers that are on their way when everything else has ended."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections, before anything slow has begun.

    Raises:
        UserError: the address is taken, or none of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        number = error.errno or 0  # below 0 it is the resolver's, which has words of its own
        reason = os.strerror(number) if number > 0 else str(error.strerror)
        mend = "name another with --host or --port"
        raise UserError(reason.lower(), where=f"{host}:{port}", mend=mend) from error
    # Connections inherit it. asyncio sets it only on sockets that name TCP as their protocol, which these do not; and
    # without it the first piece of a stream waited up to 40 ms, for the client to acknowledge the headers.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@dataclass
class Server:
    """One API over one engine.

    Attributes:
        app: the API.
        engine: what it asks; started, watched and ended here.
        drain_s: seconds that running requests have once the server is to end.
    """

    app: ASGIApp
    engine: RemoteEngine
    drain_s: float = 30.0
    _http: "_Http | None" = field(default=None, init=False)

    def run(self, sock: socket.socket) -> None:
        """Serves until a signal comes.

        Raises:
            UserError: the engine cannot be started.
            EngineUnavailable: it dies before it stands.
        """
        config = uvicorn.Config(
            self.app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=_LAST_WORDS
        )
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(self._serve(config, sock))

    def end(self) -> None:
        """Drains and lets `run` come back, as the first signal does; from any thread."""
        if self._http is not None:
            self._http.handle_exit(signal.SIGTERM, None)

    async def _serve(self, config: uvicorn.Config, sock: socket.socket) -> None:
        http = self._http = _Http(config, self)
        keeper = asyncio.create_task(self._keep(http, sock))
        keeper.add_done_callback(lambda _: http.end())
        try:
            await http.serve(sockets=[sock])
        finally:
            await self.engine.stop()
            results = await asyncio.gather(keeper, return_exceptions=True)
        if isinstance(results[0], Exception) and not http.draining:
            raise results[0]

    async def _keep(self, http: "_Http", sock: socket.socket) -> None:
        """Starts the engine, and starts it again whenever it has died."""
        while not http.draining:
            await self.engine.start()
            logger.info("ready at %s", _address(sock))
            await self.engine.ended()
            if not http.draining:
                logger.error("the engine has died; another is started")


class _Http(uvicorn.Server):
    """uvicorn, but the first signal drains."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._drain: asyncio.Task[None] | None = None
        self.draining = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See the module."""
        if self.draining:
            super().handle_exit(sig, frame)
            return
        self.draining = True
        logger.info("draining: %g s for what still runs", self._server.drain_s)
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._drain = asyncio.create_task(self._server.engine.drain(self._server.drain_s))
        self._drain.add_done_callback(lambda _: self.end())

    def end(self) -> None:
        """Lets `serve` come back."""
        self.should_exit = True


def _address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
