"""A whole server without a model: the real API, the real server, and the engine of `stepped_engine` in its own process.

Run as a program with the drain's seconds as its argument, it serves until it gets a signal; `toy_server` does that.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil

__all__ = ["ToyServer", "toy_server"]


@dataclass
class ToyServer:
    """A server in a process of its own.

    Attributes:
        process: the API's.
        url: its address.
    """

    process: "subprocess.Popen[str]"
    url: str

    @property
    def engine(self) -> psutil.Process:
        """The engine's process."""
        (engine,) = psutil.Process(self.process.pid).children()
        return engine

    def health(self) -> tuple[int, str]:
        """The status of `/health` and what it says."""
        answer = httpx2.get(f"{self.url}/health")
        return answer.status_code, answer.json()["status"]

    def until(self, status: str) -> None:
        """Waits until `/health` says so."""
        last = time.monotonic() + 60
        while self.health()[1] != status:
            assert time.monotonic() < last, f"/health never said {status}"
            time.sleep(0.02)

    def complete(self, **fields: Any) -> httpx2.Response:
        """An answer to `hello`, not streamed."""
        return httpx2.post(f"{self.url}/v1/completions", json={"prompt": "hello", **fields}, timeout=60)


@contextmanager
def toy_server(*, pause: float = 0.0, drain: float = 30.0) -> Iterator[ToyServer]:
    """A server whose engine takes `pause` seconds for a step; ready unless it says otherwise."""
    here = Path(__file__)
    command = [sys.executable, str(here), str(drain)]
    environment = {**os.environ, "TOY_PAUSE": str(pause)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield ToyServer(process, process.stdout.readline().strip())
        finally:
            process.kill()


def _main() -> None:
    import logging

    from api_server import plain_tokenizer
    from intaglio.engine.interface import EngineConfig
    from intaglio.serving.app import create_app
    from intaglio.serving.metrics import MeasuredEngine, Metrics
    from intaglio.serving.remote import ProcessEngine
    from intaglio.serving.server import Server, listen
    from intaglio.serving.service import Service

    logging.basicConfig(level=logging.INFO)
    command = (sys.executable, str(Path(__file__).with_name("stepped_engine.py")))
    engine, metrics = ProcessEngine("toy", EngineConfig(), command=command), Metrics("toy")
    app = create_app(Service(MeasuredEngine(engine, metrics), plain_tokenizer(), ("toy",)))
    app.router.routes.append(metrics.route(engine))
    sock = listen("127.0.0.1", 0)
    print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
    Server(app, engine, float(sys.argv[1])).run(sock)


if __name__ == "__main__":
    _main()
