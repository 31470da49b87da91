"""A server with the chat page whose model says what a test tells it to."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from intaglio.serving.page import files

Body = dict[str, Any]


class ScriptedChat(ThreadingHTTPServer):
    """`script(request)` gives the pieces of the answer; `refusal` is a status, a message and headers instead."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: Callable[[Body], Iterable[str | bytes]] = lambda request: ["Good", " day", "."]
        self.refusal: tuple[int, str, dict[str, str]] | None = None
        self.key: str | None = None
        self.citations: list[Body] | None = None  # of every answer
        self.broken = False  # ends the connection before the answer ends
        self.requests: list[Body] = []
        self.gone = threading.Event()  # a client left before its answer ended
        self.address = f"http://127.0.0.1:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left has been noted already."""


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: ScriptedChat

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        if self.path in files():
            file, media_type = files()[self.path]
            return self.answer(200, file.read_bytes(), {"Content-Type": media_type})
        if self.path == "/v1/models" and self.allowed():
            names = [{"id": name, "object": "model", "max_model_len": 8192} for name in ("press-135m", "press-360m")]
            self.answer(200, json.dumps({"object": "list", "data": names}).encode())
        return None

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.allowed():
            return None
        self.server.requests.append(request)
        if self.server.refusal:
            status, message, headers = self.server.refusal
            return self.answer(status, json.dumps({"error": {"message": message}}).encode(), headers)
        try:
            self.stream(request)
        except OSError:
            self.server.gone.set()
        return None

    def allowed(self) -> bool:
        """Answers 401 unless the request has the key."""
        right = self.server.key is None or self.headers["Authorization"] == f"Bearer {self.server.key}"
        if not right:
            self.answer(401, b'{"error": {"message": "wrong key"}}')
        return right

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, request: Body) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        made = 0
        text = b""
        for made, piece in enumerate(self.server.script(request), 1):
            token = piece.encode() if isinstance(piece, str) else piece
            text += token
            whole = text.decode(errors="ignore")  # half a character is held back
            text = text[len(whole.encode()) :]
            logprobs = {"content": [logprob_of(token, made)]} if request.get("logprobs") else None
            self.send({"index": 0, "delta": {"content": whole}, "logprobs": logprobs, "finish_reason": None})
        if self.server.broken:
            return
        limit = request.get("max_tokens") == made
        last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length" if limit else "stop"}
        self.send(last | ({} if self.server.citations is None else {"citations": self.server.citations}))
        details = {"prompt_tokens_details": {"cached_tokens": 16}}
        self.send(None, {"prompt_tokens": 20, "completion_tokens": made, "total_tokens": 20 + made, **details})
        self.wfile.write(b"data: [DONE]\n\n")

    def send(self, choice: Body | None, usage: Body | None = None) -> None:
        chunk = {
            "id": "chat-1",
            "object": "chat.completion.chunk",
            "choices": [choice] if choice else [],
            "usage": usage,
        }
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())


def logprob_of(token: bytes, number: int) -> Body:
    """The chosen token is the likeliest, but each third is the second likeliest."""
    second = number % 3 == 0
    name = token.decode(errors="replace")
    chosen: Body = {"token": name, "logprob": -1.25 if second else -0.105, "bytes": list(token)}
    other: Body = {"token": " other", "logprob": -0.75 if second else -2.5, "bytes": list(b" other")}
    top = sorted([chosen, other], key=lambda entry: -entry["logprob"])
    return {**chosen, "top_logprobs": top}


def slowly(pieces: Iterable[str | bytes], seconds: float = 0.02) -> Iterator[str | bytes]:
    """The pieces, one every `seconds`."""
    for piece in pieces:
        time.sleep(seconds)
        yield piece


@contextmanager
def scripted_chat() -> Iterator[ScriptedChat]:
    """Such a server, until the block ends."""
    server = ScriptedChat()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
