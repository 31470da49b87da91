"""A server of OpenAI's protocol whose answers come after fixed delays: in virtual time, or behind a real socket."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

__all__ = ["Script", "ScriptedTransport", "chunk", "scripted_socket", "usage"]

Events = list[tuple[float, Any]]
"""Seconds before each event, and the event: an object, or raw text."""


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """One piece of an answer."""
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def usage(prompt: int, made: int, **more: Any) -> dict[str, Any]:
    """The last message of a stream."""
    told = {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made, **more}
    return {"object": "chat.completion.chunk", "choices": [], "usage": told}


@dataclass
class Script:
    """What the server does.

    Attributes:
        first: seconds to the first token.
        gap: seconds from a token to the next.
        slots: answers at once; others wait.
        events: in place of that, the events for the body of a request.
        tokenize: the ids of a word; None for a server that does not tokenise.
        metrics: what it tells Prometheus; called for each look.
        refusals: statuses that the next requests are answered with, with their headers.
        asked: the bodies that came, in order.
        spans: for each answer, how long its first piece, and all of it, took to go out: a busy machine oversleeps.
    """

    first: float = 0.125
    gap: float = 0.03125
    slots: int = 1000
    events: Callable[[dict[str, Any]], Events] | None = None
    tokenize: Callable[[str], list[int]] | None = lambda word: [len(word)]
    metrics: Callable[[], str] | None = None
    refusals: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)

    def answer(self, body: dict[str, Any]) -> Events:
        """A role without content at once; then a token each, as many as are asked for; the usage behind them."""
        if self.events is not None:
            return self.events(body)
        many = body["max_tokens"]
        waits = [self.first, *[self.gap] * (many - 1)]
        tokens = [(wait, chunk("length" if i == many - 1 else None, content=f"t{i} ")) for i, wait in enumerate(waits)]
        role = chunk(role="assistant", content="")
        return [(0.0, role), *tokens, (0.0, usage(_words(body), many)), (0.0, "[DONE]")]

    def plain(self, path: str, body: Any) -> tuple[int, Any]:
        """The answer to everything that is no stream."""
        if path == "/v1/models":
            return 200, {"data": [{"id": "scripted"}]}
        if path == "/tokenize" and self.tokenize is not None:
            return 200, {"tokens": self.tokenize(body["prompt"])}
        if path == "/metrics" and self.metrics is not None:
            return 200, self.metrics()
        return 404, {"error": {"message": "no such address"}}


def _words(body: dict[str, Any]) -> int:
    if "prompt" in body:
        return len(body["prompt"])
    return sum(len(str(message["content"]).split()) for message in body["messages"])


def _sent(event: Any) -> bytes:
    return f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()


class ScriptedTransport(httpx2.AsyncBaseTransport):
    """The server without a socket: whatever time passes is the loop's."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._free = asyncio.Semaphore(script.slots)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answers."""
        body = json.loads(await request.aread() or b"null")
        if not request.url.path.endswith("completions"):
            status, told = self.script.plain(request.url.path, body)
            text = told if isinstance(told, str) else json.dumps(told)
            return httpx2.Response(status, content=text.encode())
        self.script.asked.append(body)
        if self.script.refusals:
            status, headers = self.script.refusals.pop(0)
            return httpx2.Response(status, headers=headers, json={"error": {"message": "not now"}})
        return httpx2.Response(200, stream=_Stream(self._events(self.script.answer(body))))

    async def _events(self, events: Events) -> AsyncIterator[bytes]:
        async with self._free:
            for wait, event in events:
                await asyncio.sleep(wait)
                yield _sent(event)


class _Stream(httpx2.AsyncByteStream):
    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._pieces


@contextmanager
def scripted_socket(script: Script) -> Iterator[str]:
    """The address of the server in a thread of this process, with an event loop of its own."""
    started, ended = threading.Event(), asyncio.Event()
    place: list[Any] = []

    async def serve() -> None:
        server = await asyncio.start_server(lambda reader, writer: _talk(script, reader, writer), "127.0.0.1", 0)
        place.extend([asyncio.get_running_loop(), server.sockets[0].getsockname()[1]])
        started.set()
        await ended.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield f"http://127.0.0.1:{place[1]}"
    finally:
        place[0].call_soon_threadsafe(ended.set)
        thread.join(10)


async def _talk(script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Request after request of one connection (HTTP/1.1, answers in chunks)."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            lines = head.decode("latin-1").split("\r\n")
            lengths = [line.split(":")[1] for line in lines if line.lower().startswith("content-length:")]
            body = json.loads(await reader.readexactly(int(lengths[0])) if lengths else b"null")
            path = lines[0].split(" ")[1]
            if path.endswith("completions"):
                await _stream(script, body, writer)
            else:
                _reply(writer, *script.plain(path, body))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _reply(writer: asyncio.StreamWriter, status: int, told: Any) -> None:
    content = (told if isinstance(told, str) else json.dumps(told)).encode()
    kind = "text/plain" if isinstance(told, str) else "application/json"
    head = f"HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
    writer.write(head.encode() + content)


async def _stream(script: Script, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    script.asked.append(body)
    begin = time.perf_counter()
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    times: list[float] = []
    for wait, event in script.answer(body):
        await asyncio.sleep(wait)
        if isinstance(event, dict) and event["choices"] and event["choices"][0]["delta"].get("content"):
            times.append(time.perf_counter() - begin)
        data = _sent(event)
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    script.spans.append((times[0], times[-1]) if times else (0.0, 0.0))
