"""A server of completions that knows the likelihoods of a model here, and stumbles when a test tells it to."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from intaglio.evaluation.subjects.subject import Subject

__all__ = ["ScriptedCompletions", "Trouble", "scripted_completions"]

Body = dict[str, Any]
Trouble = tuple[int, dict[str, str], bytes] | str
"""What comes in place of an answer: a status, headers and a body; or `drop`, which ends the connection."""


class ScriptedCompletions(ThreadingHTTPServer):
    """`subject` gives log-probabilities; `say` writes answers; `troubles` come first, one a request."""

    daemon_threads = True

    def __init__(self, subject: Subject | None, say: Callable[[Body], str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.subject, self.say = subject, say
        self.troubles: list[Trouble] = []
        self.always: Trouble | None = None
        self.tells_logprobs = self.tokenizes = self.tells_more = True
        self.requests: list[tuple[str, Body]] = []
        self.key: str | None = None
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Dropped connections are meant."""

    @property
    def asked(self) -> list[Body]:
        """The bodies of completions of either kind."""
        return [body for path, body in self.requests if path.endswith("completions")]


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: ScriptedCompletions

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        if isinstance(self.server.always, str):
            self.close_connection = True
            return
        self.answer(200, {"data": [{"id": "toy", "max_model_len": 256}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            return self.answer(401, {"error": {"message": "wrong key"}})
        with self.server.lock:
            is_answer = self.path.endswith("completions")
            troubles = self.server.troubles
            trouble = troubles.pop(0) if troubles and is_answer else self.server.always
            self.server.requests.append((self.path, body))
        if trouble == "drop":
            self.close_connection = True
            return None
        if isinstance(trouble, tuple):
            return self.answer(trouble[0], trouble[2], trouble[1])
        if self.path == "/tokenize":
            return self.tokenize(body)
        return self.answer(200, self.completion(body))

    def tokenize(self, body: Body) -> None:
        tokenizer = self.server.subject and self.server.subject.tokenizer
        if not self.server.tokenizes or not tokenizer:
            return self.answer(404, {"error": {"message": "no such path"}})
        return self.answer(200, {"tokens": tokenizer.encode(body["prompt"], body["add_special_tokens"])})

    def completion(self, body: Body) -> Body:
        if not body.get("echo"):
            text = self.server.say(body)
            said = {"message": {"role": "assistant", "content": text}} if "messages" in body else {"text": text}
            return {"choices": [{"index": 0, **said, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}
        (ids,) = body["prompt"]
        with self.server.lock:
            assert self.server.subject
            (told,) = self.server.subject.log_probs([ids])
        assert isinstance(told, list)
        values = [None, *told, *([-1.0] if self.server.tells_more else [])]
        top = [None, *({"x": value} for value in values[1:] if value is not None)]
        logprobs = {"token_logprobs": values, "top_logprobs": top} if self.server.tells_logprobs else None
        return {"choices": [{"index": 0, "text": "", "logprobs": logprobs, "finish_reason": "length"}]}

    def answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def scripted_completions(
    subject: Subject | None = None, say: Callable[[Body], str] = lambda body: "Paris"
) -> Iterator[ScriptedCompletions]:
    """Such a server, until the block ends."""
    server = ScriptedCompletions(subject, say)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
