"""The engine's own process: it takes requests between two steps, and tokenising and HTTP never wait for a step.

`python -m intaglio.serving.worker FD` is started by `remote.ProcessEngine` with one end of a socket; when the other end
closes, whatever the reason, the process ends.
"""

import logging
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from intaglio.engine.interface import EngineStats, Output
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.serving import messages
from intaglio.serving.messages import HEADER, Launch

__all__ = ["SteppedEngine", "main", "work"]

logger = logging.getLogger(__name__)


class SteppedEngine(Protocol):
    """What the worker asks of an engine; `engine.engine.Engine` is one."""

    @property
    def max_model_len(self) -> int:
        """Tokens of a prompt and its answer together at most."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""

    def add(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        salt: bytes = b"",
    ) -> None:
        """Queues a request, or raises `UserError` where it can never be answered."""

    def abort(self, request_id: str) -> None:
        """Ends a request and frees its blocks; nothing where it is not known."""

    def step(self) -> list[Output]:
        """One forward over what the scheduler chose."""

    def stats(self) -> EngineStats:
        """The engine at this moment."""

    def embed(self, prompts: Sequence[Sequence[int]], *, pooling: Any = "mean", normalize: bool = True) -> Any:
        """A tensor with a vector a prompt."""

    def score(self, prompts: Sequence[Sequence[int]]) -> Any:
        """A row of numbers a prompt."""


class _Hung(Exception):
    """The other side has closed its end."""


class _Inbox:
    """Messages as they come in; reading never waits unless asked to."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._buffer = sock, bytearray()

    def take(self, wait: bool) -> list[bytes]:
        """The messages that are there; where there is none and `wait` says so, the next one."""
        self._receive(wait=False)
        found = list(self._whole())
        while wait and not found:
            self._receive(wait=True)
            found = list(self._whole())
        return found

    def _receive(self, wait: bool) -> None:
        while select.select([self._sock], [], [], None if wait else 0)[0]:
            data = self._sock.recv(1 << 20)
            if not data:
                raise _Hung
            self._buffer += data
            wait = False

    def _whole(self) -> Iterator[bytes]:
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            if len(self._buffer) < HEADER.size + length:
                return
            yield bytes(self._buffer[HEADER.size : HEADER.size + length])
            del self._buffer[: HEADER.size + length]


class _Worker:
    """One engine and the socket over which it is asked."""

    def __init__(self, engine: SteppedEngine, sock: socket.socket, inbox: _Inbox) -> None:
        self._engine, self._sock, self._inbox = engine, sock, inbox
        self._computed = 0

    def run(self) -> None:
        """Answers until the other side hangs up."""
        self._send(messages.Ready(self._engine.max_model_len))
        while True:
            for message in self._inbox.take(wait=not self._engine.has_work):
                self._handle(messages.read_to_engine(message))
            if self._engine.has_work:
                self._step()

    def _step(self) -> None:
        outputs = self._engine.step()
        before, self._computed = self._computed, self._engine.stats().computed_tokens
        self._send(messages.Outputs(outputs, self._computed - before))

    def _handle(self, message: messages.ToEngine) -> None:
        try:
            reply = self._answer(message)
        except UserError as error:
            self._send(messages.Refused(message.request_id, error.what, error.where, error.mend))
        else:
            if reply is not None:
                self._send(messages.Replied(message.request_id, reply))

    def _answer(self, message: messages.ToEngine) -> list[list[float]] | EngineStats | None:
        match message:
            case messages.Generate():
                params = SamplingParams(**message.params)
                self._engine.add(
                    message.request_id, message.prompt_ids, params, priority=message.priority, salt=message.salt
                )
            case messages.Abort():
                self._engine.abort(message.request_id)
            case messages.Embed():
                vectors = self._engine.embed(message.prompts, pooling=message.pooling, normalize=message.normalize)
                return vectors.tolist()
            case messages.Score():
                return [[found] if isinstance(found, float) else found for found in self._engine.score(message.prompts)]
            case messages.Stats():
                return self._engine.stats()
        return None

    def _send(self, message: messages.FromEngine) -> None:
        self._sock.sendall(messages.encode(message))


def work(sock: socket.socket, build: Callable[[Launch], SteppedEngine]) -> None:
    """Reads the launch, builds the engine and answers until the other side hangs up.

    A launch that cannot be (no such model, too little memory) is told to the other side.
    """
    inbox = _Inbox(sock)
    try:
        (launch,) = inbox.take(wait=True)  # nothing else is sent before we are ready
        try:
            engine = build(messages.read_launch(launch))
        except UserError as error:
            sock.sendall(messages.encode(messages.Refused("", error.what, error.where, error.mend)))
            return
        _Worker(engine, sock, inbox).run()
    except (_Hung, BrokenPipeError, ConnectionResetError):
        logger.debug("the API has hung up")
    finally:
        sock.close()


def main(build: Callable[[Launch], SteppedEngine] | None = None) -> None:
    """The process: the socket is the file whose number is the last argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the API decides when this one ends
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with socket.socket(fileno=int(sys.argv[-1])) as sock:
        work(sock, build or _build)


def _build(launch: Launch) -> SteppedEngine:
    """The engine with a real model; what it needs is imported here, so that other engines do without."""
    import torch

    from intaglio.engine.llm import LLM

    if launch.threads:
        torch.set_num_threads(launch.threads)
    return LLM(launch.model, dtype=launch.dtype, device=launch.device, config=launch.config).engine


if __name__ == "__main__":
    main()
