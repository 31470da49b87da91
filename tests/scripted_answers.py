"""A server of chats that answers each question as a test told it to, so that what is right is known in advance."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["scripted_answers"]


@contextmanager
def scripted_answers(answer: Callable[[str], str], name: str = "scripted") -> Iterator[str]:
    """Its address; `answer` makes of the last message what is said to it."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

        def do_GET(self) -> None:
            self.tell({"object": "list", "data": [{"id": name, "object": "model"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = {"role": "assistant", "content": answer(asked["messages"][-1]["content"])}
            choice = {"index": 0, "message": said, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            head = {"id": "chat-1", "object": "chat.completion", "created": 1, "model": name}
            self.tell({**head, "choices": [choice], "usage": usage})

        def tell(self, what: Any) -> None:
            body = json.dumps(what).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
