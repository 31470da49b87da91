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
from pathlib import Path
from typing import Any, Protocol

from intaglio.engine.interface import EngineStats, Output
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.serving import messages
from intaglio.serving.messages import HEADER, Launch

__all__ = ["Build", "ReadAdapter", "SteppedEngine", "main", "work"]

logger = logging.getLogger(__name__)

ReadAdapter = Callable[[str], Any]
"""Reads a PEFT directory into what the engine takes as an adapter of its model, or raises `UserError`."""


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
        adapter: str | None = None,
    ) -> None:
        """Queues a request, or raises `UserError` where it can never be answered."""

    def abort(self, request_id: str) -> None:
        """Ends a request and frees its blocks; nothing where it is not known."""

    def step(self) -> list[Output]:
        """One forward over what the scheduler chose."""

    def stats(self) -> EngineStats:
        """The engine at this moment."""

    def embed(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        pooling: Any = "mean",
        normalize: bool = True,
        adapter: str | None = None,
    ) -> Any:
        """A tensor with a vector a prompt."""

    def score(self, prompts: Sequence[Sequence[int]], *, adapter: str | None = None) -> Any:
        """A row of numbers a prompt."""

    def load_adapter(self, name: str, updates: Any) -> None:
        """Takes an adapter, or raises `UserError` where the name is taken."""

    def unload_adapter(self, name: str) -> None:
        """Lets an adapter go once nothing runs under it, or raises `UserError` where there is none of this name."""


Build = Callable[[Launch], tuple[SteppedEngine, ReadAdapter]]
"""Makes the engine of a launch, and what reads adapters for it; or raises `UserError`."""


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

    def __init__(self, engine: SteppedEngine, read: ReadAdapter, sock: socket.socket, inbox: _Inbox) -> None:
        self._engine, self._read, self._sock, self._inbox = engine, read, sock, inbox
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
                self._send(reply)

    def _answer(self, message: messages.ToEngine) -> messages.Replied | messages.Done | None:
        number = message.request_id
        match message:
            case messages.Generate():
                self._add(message)
            case messages.Abort():
                self._engine.abort(number)
            case messages.Embed():
                return messages.Replied(number, self._embed(message))
            case messages.Score():
                scores = self._engine.score(message.prompts, adapter=message.adapter)
                return messages.Replied(number, [[one] if isinstance(one, float) else one for one in scores])
            case messages.Stats():
                return messages.Replied(number, self._engine.stats())
            case messages.LoadAdapter():
                self._engine.load_adapter(message.name, self._read(message.directory))
                return messages.Done(number)
            case messages.UnloadAdapter():
                self._engine.unload_adapter(message.name)
                return messages.Done(number)
        return None

    def _add(self, asked: messages.Generate) -> None:
        self._engine.add(
            asked.request_id,
            asked.prompt_ids,
            SamplingParams(**asked.params),
            priority=asked.priority,
            salt=asked.salt,
            adapter=asked.adapter,
        )

    def _embed(self, asked: messages.Embed) -> list[list[float]]:
        made = self._engine.embed(
            asked.prompts, pooling=asked.pooling, normalize=asked.normalize, adapter=asked.adapter
        )
        vectors: list[list[float]] = made.tolist()
        return vectors

    def _send(self, message: messages.FromEngine) -> None:
        self._sock.sendall(messages.encode(message))


def work(sock: socket.socket, build: Build) -> None:
    """Reads the launch, builds the engine and answers until the other side hangs up.

    A launch that cannot be (no such model, too little memory) is told to the other side.
    """
    inbox = _Inbox(sock)
    try:
        (launch,) = inbox.take(wait=True)  # nothing else is sent before we are ready
        try:
            engine, read = build(messages.read_launch(launch))
        except UserError as error:
            sock.sendall(messages.encode(messages.Refused("", error.what, error.where, error.mend)))
            return
        _Worker(engine, read, sock, inbox).run()
    except (_Hung, BrokenPipeError, ConnectionResetError):
        logger.debug("the API has hung up")
    finally:
        sock.close()


def main(build: Build | None = None) -> None:
    """The process: the socket is the file whose number is the last argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the API decides when this one ends
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with socket.socket(fileno=int(sys.argv[-1])) as sock:
        work(sock, build or _build)


def _build(launch: Launch) -> tuple[SteppedEngine, ReadAdapter]:
    """The engine with a real model; what it needs is imported here, so that other engines do without."""
    import torch

    from intaglio.checkpoints.models import find_model
    from intaglio.engine.llm import LLM

    if launch.threads:
        torch.set_num_threads(launch.threads)
    llm = LLM(launch.model, dtype=launch.dtype, device=launch.device, config=launch.config)

    def read(directory: str) -> Any:
        from intaglio.adapters.served import read_updates

        updates = read_updates(Path(directory), llm.model, find_model(launch.model))
        for note in updates.notes:
            logger.warning("%s", note)
        return updates

    return llm.engine, read


if __name__ == "__main__":
    main()
