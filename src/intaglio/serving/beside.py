"""A server of ours beside this process, for as long as it is needed."""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final
from urllib.error import URLError
from urllib.request import urlopen

from intaglio.errors import UserError

__all__ = ["served"]

_PATIENCE: Final = 300.0
"""Seconds for the model to load."""


@contextmanager
def served(model: str, *options: str) -> Iterator[str]:
    """Runs `intaglio serve MODEL` at a free port of this machine; yields its address once it answers, and ends it.

    Raises:
        UserError: the server ends before it answers; says its last words.
    """
    address = f"http://127.0.0.1:{_free_port()}"
    command = [sys.executable, "-m", "intaglio.cli.main", "serve", model, "--port", address.rpartition(":")[2]]
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen([*command, *options], stdout=log, stderr=log)
        try:
            _wait(server, address, log)
            yield address
        finally:
            server.terminate()
            server.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def _wait(server: "subprocess.Popen[bytes]", address: str, log: IO[bytes]) -> None:
    end = time.monotonic() + _PATIENCE
    while not _answers(address):
        if server.poll() is not None or time.monotonic() > end:
            raise UserError(f"the server did not start: {_last_words(log)}", where=address)
        time.sleep(0.1)


def _answers(address: str) -> bool:
    try:
        with urlopen(f"{address}/health", timeout=5):
            return True
    except (URLError, OSError):
        return False


def _last_words(log: IO[bytes]) -> str:
    log.seek(0)
    return (log.read().decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
