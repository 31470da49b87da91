"""The server as a whole: loading, dying, draining and ending, seen from outside."""

import json
import signal
import socket
import threading
import time
from typing import Any

import httpx2
import pytest

from intaglio.errors import UserError
from intaglio.serving.server import listen
from toy_server import ToyServer, toy_server


def test_small_pieces_are_sent_at_once() -> None:
    with listen("127.0.0.1", 0) as sock, socket.create_connection(sock.getsockname()), sock.accept()[0] as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


class Streamed(threading.Thread):
    """A long answer that is read in the background."""

    def __init__(self, server: ToyServer, tokens: int) -> None:
        super().__init__()
        self.url, self.tokens = server.url, tokens
        self.begun = threading.Event()
        self.chunks: list[Any] = []
        self.start()
        assert self.begun.wait(30)

    def run(self) -> None:
        """Reads it all."""
        body = {"prompt": "hello", "max_tokens": self.tokens, "stream": True}
        with httpx2.stream("POST", f"{self.url}/v1/completions", json=body, timeout=60) as answer:
            for line in answer.iter_lines():
                if line and "[DONE]" not in line:
                    self.chunks.append(json.loads(line.removeprefix("data: ")))
                    self.begun.set()

    def end(self) -> list[Any]:
        """All chunks, when the answer is over."""
        self.join(60)
        assert not self.is_alive(), "the client hangs"
        return self.chunks


def reason(chunk: Any) -> Any:
    return chunk["choices"][0]["finish_reason"]


def test_killing_the_engine_fails_its_requests_and_another_one_starts() -> None:
    with toy_server(pause=0.02) as server:
        server.until("ok")
        answers = [Streamed(server, 50) for _ in range(3)]
        first = server.engine
        start = time.monotonic()
        first.kill()
        for answer in answers:
            assert answer.end()[-1]["error"]["type"] == "server_error"
        assert time.monotonic() - start < 10
        status, said = server.health()
        assert (status == 200) == (said == "ok")
        server.until("ok")
        assert server.engine.pid != first.pid
        after = server.complete(max_tokens=2)
        assert (after.status_code, after.json()["usage"]["completion_tokens"]) == (200, 2)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0


def test_while_it_loads_and_while_it_drains_it_says_so_and_running_answers_end_whole() -> None:
    with toy_server(pause=0.1) as server:
        assert server.health() == (503, "loading")
        refused = server.complete(max_tokens=1)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        server.until("ok")
        answer = Streamed(server, 20)
        server.process.send_signal(signal.SIGTERM)
        server.until("draining")
        assert server.health() == (503, "draining")
        assert server.complete(max_tokens=1).status_code == 503
        chunks = answer.end()
        assert [reason(chunk) for chunk in chunks] == [None] * 19 + ["length"]
        assert server.process.wait(30) == 0


def test_what_does_not_end_in_time_is_given_up() -> None:
    with toy_server(pause=0.2, drain=0.3) as server:
        server.until("ok")
        answer = Streamed(server, 50)
        engine = server.engine
        server.process.send_signal(signal.SIGINT)
        assert "error" in answer.end()[-1]
        assert server.process.wait(30) == 0
        engine.wait(30)


def test_an_address_that_is_taken_is_the_users_mistake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port}: address already in use; name another"):
            listen("127.0.0.1", port)
    with pytest.raises(UserError, match=r"203\.0\.113\.1:0"):
        listen("203.0.113.1", 0)
