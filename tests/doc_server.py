"""`intaglio serve` out of this process, which has imported all that it needs: a fork serves, its own fork computes.

Started afresh (`serving.beside`), the two processes import torch once each, which is all that a page's test would do.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from intaglio.cli.main import main
from intaglio.serving import worker

__all__ = ["forked_server"]

_FORK = get_context("fork")
_PATIENCE = 120.0  # seconds; a busy machine is no finding


class _Worker:
    """What `ProcessEngine` asks of `subprocess.Popen`; the engine's process is a fork."""

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int]) -> None:
        self._process = _FORK.Process(target=_work, args=(list(command), set(pass_fds)))
        self._process.start()
        self.pid = self._process.pid

    def wait(self, timeout: float | None = None) -> None:
        """Until it has ended."""
        self._process.join(timeout)
        if self._process.is_alive():
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)

    def kill(self) -> None:
        """Ends it."""
        self._process.kill()


def _work(command: list[str], kept: set[int]) -> None:
    """Other ends of sockets are closed, so that the engine sees the server end."""
    for number in map(int, os.listdir("/dev/fd")):
        if number > 2 and number not in kept:
            _close(number)
    sys.argv = command
    worker.main()


def _close(number: int) -> None:
    try:
        os.close(number)
    except OSError:  # the listing's own, which is closed by now
        return


def _serve(words: list[str], port: int, log: str) -> None:
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    setattr(subprocess, "Popen", _Worker)  # noqa: B010 # `ProcessEngine` starts the engine by it
    sys.argv = ["intaglio", "serve", *words, "--port", str(port)]
    main()


@contextmanager
def forked_server(words: list[str]) -> Iterator[str]:
    """Runs `intaglio serve WORDS` at a free port; yields its address once it answers, and ends it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        process = _FORK.Process(target=_serve, args=(words, port, str(log)))
        process.start()
        try:
            _wait(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.join()


def _wait(process: Any, address: str, log: Path) -> None:
    end = time.monotonic() + _PATIENCE
    while not _answers(address):
        said = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        assert process.is_alive(), f"the server ended:\n{said}"
        assert time.monotonic() < end, f"the server did not start:\n{said}"
        time.sleep(0.05)


def _answers(address: str) -> bool:
    try:
        with urlopen(f"{address}/health", timeout=5):
            return True
    except (URLError, OSError):
        return False
