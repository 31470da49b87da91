"""`intaglio serve` in processes of its own, for tests of the command as users start it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import psutil

__all__ = ["Served", "served_model"]


@dataclass
class Served:
    """A running server.

    Attributes:
        process: the API's.
        url: its address.
        log: what it writes.
    """

    process: "subprocess.Popen[bytes]"
    url: str
    log: Path

    def memory(self) -> int:
        """Bytes that the API and the engine hold."""
        api = psutil.Process(self.process.pid)
        return sum(process.memory_info().rss for process in [api, *api.children()])

    def end(self) -> int:
        """Ends it as an operator would; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def served_model(
    model: str | Path,
    *options: str,
    log: Path,
    patience: float = 300,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Served]:
    """A server that is ready; killed afterwards, if it still runs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "intaglio.cli.main", "serve", str(model), "--port", str(port), *options]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **(environment or {})})
    server = Served(process, f"http://127.0.0.1:{port}", log)
    try:
        _until_ready(server, patience)
        yield server
    finally:
        process.kill()
        process.wait()


def _until_ready(server: Served, patience: float) -> None:
    last = time.monotonic() + patience
    while time.monotonic() < last and server.process.poll() is None:
        try:
            if httpx2.get(f"{server.url}/health", timeout=30).status_code == 200:
                return
        except httpx2.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"the server is not ready:\n{server.log.read_text(errors='replace')}")
