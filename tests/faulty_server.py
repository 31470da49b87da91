"""The whole API over a toy model, behind a socket in this process, which fails as a test told it to.

Faults are told by the number of the request for an answer (the first is 0):

- `429`: refused, with `Retry-After`;
- `500`: an error of the server;
- `cut`: the connection ends in the middle of the answer;
- `malformed`: an answer of the right type that lacks what was asked for;
- `no JSON`: an answer of another kind;
- `die`: the connection ends, and from then on nobody is there.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from intaglio.checkpoints.models import load_tokenizer
from intaglio.engine.interface import EngineConfig
from intaglio.serving import worker
from intaglio.serving.app import create_app
from intaglio.serving.messages import Launch
from intaglio.serving.remote import LocalEngine
from intaglio.serving.server import Server, listen
from intaglio.serving.service import Service

__all__ = ["Fault", "FaultyServer", "faulty_server"]

Fault = Literal["429", "500", "cut", "malformed", "no JSON", "die"]
_ANSWERS = ("/v1/completions", "/v1/chat/completions")


class _Broken(Exception):
    """Ends a connection whose answer has begun."""


@dataclass
class FaultyServer:
    """A server that runs.

    Attributes:
        url: its address.
        faults: by the number of the request.
        asked: the bodies that came, those that were not answered too.
        dead: whether it has died.
        leave: closes the port.
    """

    url: str
    faults: Mapping[int, Fault]
    asked: list[dict[str, Any]] = field(default_factory=list)
    dead: bool = False
    leave: Callable[[], None] = lambda: None

    def around(self, app: ASGIApp) -> ASGIApp:
        """The API with the faults."""

        async def faulty(scope: Scope, receive: Receive, send: Send) -> None:
            if self.dead:
                await _cut(send)
            if scope["type"] != "http" or scope["path"] not in _ANSWERS:
                await app(scope, receive, send)
                return
            body = await _body(receive)
            fault = self.faults.get(len(self.asked))
            self.asked.append(json.loads(body))
            if fault is None:
                await app(scope, _again(body, receive), send)
            else:
                await self._fail(fault, send)

        return faulty

    async def _fail(self, fault: Fault, send: Send) -> None:
        error = {"error": {"message": "told to fail", "type": "x", "param": None, "code": None}}
        match fault:
            case "429":
                await _answer(send, 429, error, {b"retry-after": b"1"})
            case "500":
                await _answer(send, 500, error)
            case "malformed":
                choices = [{"index": 0, "text": "", "logprobs": {"token_logprobs": [None]}, "finish_reason": "stop"}]
                await _answer(send, 200, {"object": "text_completion", "choices": choices})
            case "no JSON":
                await _answer(send, 200, "<html>")
            case "cut":
                await _cut(send)
            case "die":
                self.dead = True
                self.leave()
                await _cut(send)


@contextmanager
def faulty_server(
    model: Path, faults: Mapping[int, Fault] | None = None, *, port: int = 0, dtype: str = "float32", name: str = "toy"
) -> Iterator[FaultyServer]:
    """Such a server, until the block ends."""
    config = EngineConfig(block_size=4, num_blocks=256)
    built, read = worker._build(Launch(str(model), dtype, "cpu", None, config))
    engine, sock = LocalEngine(built, read), listen("127.0.0.1", port)
    faulty = FaultyServer(f"http://127.0.0.1:{sock.getsockname()[1]}", faults or {})
    app = create_app(Service(engine, load_tokenizer(model), (name,)))
    server = Server(faulty.around(app), engine, drain_s=0)
    faulty.leave = lambda: _leave(server)
    thread = threading.Thread(target=server.run, args=(sock,), daemon=True)
    thread.start()
    try:
        yield faulty
    finally:
        server.end()
        thread.join(30)


def _leave(server: Server) -> None:
    assert server._http is not None
    for listener in server._http.servers:
        listener.close()


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


def _again(body: bytes, receive: Receive) -> Receive:
    """The body once more, then whatever comes."""
    told = False

    async def replay() -> Any:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _answer(send: Send, status: int, body: Any, headers: Mapping[bytes, bytes] | None = None) -> None:
    text = (body if isinstance(body, str) else json.dumps(body)).encode()
    told = [(b"content-type", b"application/json"), *(headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": told})
    await send({"type": "http.response.body", "body": text})


async def _cut(send: Send) -> None:
    """Half an answer: more was promised than comes."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"1000")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"choices": [', "more_body": True})
    raise _Broken
