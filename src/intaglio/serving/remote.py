"""An engine behind a socket: many requests at once over one connection, and its death known at once.

`ProcessEngine` starts the engine in a process of its own; `LocalEngine` runs one in a thread, for tests and notebooks.
Both speak through `RemoteEngine`.
"""

import asyncio
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from typing import Any

from intaglio.engine.interface import EngineConfig, EngineStats, Output, Pooling
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.serving import messages
from intaglio.serving.client import EngineUnavailable, State
from intaglio.serving.messages import HEADER, Launch
from intaglio.serving.worker import ReadAdapter, SteppedEngine, work

__all__ = ["LocalEngine", "ProcessEngine", "RemoteEngine"]

logger = logging.getLogger(__name__)

_NO_ADAPTERS: Mapping[str, str] = {}
_PATIENCE = 10.0
"""Seconds that an engine which was asked to end has for its last step."""


class _Stream:
    """What one request still has to say."""

    def __init__(self, request_id: str, choices: int) -> None:
        self.request_id, self._open = request_id, set(range(choices))
        self._queue: asyncio.Queue[Output | Exception] = asyncio.Queue()

    @property
    def ended(self) -> bool:
        """Whether every choice has had its last output."""
        return not self._open

    def put(self, item: Output | Exception) -> None:
        """The engine's next word."""
        self._queue.put_nowait(item)

    def abort(self) -> None:
        """Ends what has not ended."""
        for choice in sorted(self._open):
            self.put(Output(self.request_id, choice, [], "", finish_reason="abort"))

    async def next(self) -> Output:
        """The next output, or the error that ended the request."""
        item = await self._queue.get()
        if isinstance(item, Exception):
            self._open.clear()
            raise item
        if item.finish_reason:
            self._open.discard(item.choice)
        return item


class RemoteEngine:
    """An `AsyncEngine` over a socket; its subclasses say what runs behind it.

    Args:
        launch: what is told to the other side first.
        adapters: the directories of those that are loaded before it counts as ready, by name.
    """

    def __init__(self, launch: Launch, adapters: Mapping[str, str] = _NO_ADAPTERS) -> None:
        self._launch = launch
        self._adapters = dict(adapters)
        self._state: State = "loading"
        self._max_model_len = 0
        self._streams: dict[str, _Stream] = {}
        self._calls: dict[str, asyncio.Future[Any]] = {}
        self._number = 0
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self.on_step: Callable[[int], None] = lambda tokens: None
        """Called with the tokens that each step worked on."""

    @property
    def state(self) -> State:
        """See `AsyncEngine`."""
        return self._state

    @property
    def alive(self) -> bool:
        """See `AsyncEngine`."""
        return self._state == "ready"

    @property
    def max_model_len(self) -> int:
        """See `AsyncEngine`."""
        return self._max_model_len

    @property
    def busy(self) -> bool:
        """Whether a request still runs."""
        return bool(self._streams or self._calls)

    async def start(self) -> None:
        """Starts the engine and waits until its model stands; after its death, starts it again.

        Raises:
            UserError: there is no such model, no room for it, or an adapter that is none for it.
            EngineUnavailable: it died while it loaded.
        """
        self._state, again = "loading", self._listener is not None
        reader, self._writer = await asyncio.open_connection(sock=await self._open())
        ready = self._calls[""] = asyncio.get_running_loop().create_future()
        self._listener = asyncio.create_task(self._listen(reader))
        self._send(self._launch)
        self._max_model_len = await ready
        blocks, size = (await self._call(messages.Stats)).num_blocks, self._launch.config.block_size
        logger.info("a context of %d tokens; %d blocks of %d for keys and values", self._max_model_len, blocks, size)
        for name in list(self._adapters):
            await self._equip(name, again)
        self._state = "ready"

    async def _equip(self, name: str, again: bool) -> None:
        """Loads an adapter before requests come; one that can be loaded no more does not take the model with it."""
        self._require("loading")
        try:
            await self._call(lambda number: messages.LoadAdapter(number, name, self._adapters[name]))
        except UserError as error:
            if not again:
                raise
            logger.error("the adapter %s is lost: %s", name, error)
            del self._adapters[name]

    async def ended(self) -> None:
        """Waits until the engine has hung up and is no more, so that two never hold memory at once."""
        assert self._listener is not None, "start() comes first"
        await asyncio.shield(self._listener)
        await self._close()

    async def drain(self, patience: float) -> None:
        """Takes no further request and waits until those that run have ended; after `patience` seconds, aborts them.

        An engine that still loads has none.
        """
        if self._state == "ready":
            self._state = "draining"
        last = time.monotonic() + patience
        while self._state == "draining" and self.busy and time.monotonic() < last:
            await asyncio.sleep(0.02)
        for request_id in list(self._streams):
            await self.abort(request_id)

    async def stop(self) -> None:
        """Ends the engine, and with it whatever still runs."""
        if self._writer is not None:
            self._writer.close()
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait([self._listener])
        self._hang_up("the server has ended")
        await self._close()

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        salt: bytes = b"",
        adapter: str | None = None,
        arrival: float | None = None,
    ) -> AsyncGenerator[Output, None]:
        """See `AsyncEngine`."""
        self._require("ready")
        if request_id in self._streams:
            raise ValueError(f"there is a request {request_id!r} already")
        stream = self._streams[request_id] = _Stream(request_id, params.n)
        asked = params.model_dump(mode="json", exclude_defaults=True)
        try:
            self._send(messages.Generate(request_id, list(prompt_ids), asked, priority, salt, adapter))
            while not stream.ended:
                yield await stream.next()
        finally:
            del self._streams[request_id]
            if not stream.ended:
                self._send(messages.Abort(request_id))

    async def abort(self, request_id: str) -> None:
        """See `AsyncEngine`."""
        if request_id in self._streams:
            self._send(messages.Abort(request_id))
            self._streams[request_id].abort()

    async def embed(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        pooling: Pooling = "mean",
        normalize: bool = True,
        adapter: str | None = None,
    ) -> list[list[float]]:
        """See `AsyncEngine`."""
        self._require("ready")
        ids = [list(prompt) for prompt in prompts]
        return await self._call(lambda number: messages.Embed(number, ids, pooling, normalize, adapter))

    async def score(self, prompts: Sequence[Sequence[int]], *, adapter: str | None = None) -> list[list[float]]:
        """See `AsyncEngine`."""
        self._require("ready")
        ids = [list(prompt) for prompt in prompts]
        return await self._call(lambda number: messages.Score(number, ids, adapter))

    async def stats(self) -> EngineStats:
        """See `AsyncEngine`."""
        self._require("ready", "draining")
        return await self._call(messages.Stats)

    @property
    def adapters(self) -> Collection[str]:
        """See `AsyncEngine`."""
        return self._adapters.keys()

    async def load_adapter(self, name: str, directory: str) -> None:
        """See `AsyncEngine`."""
        self._require("ready")
        await self._call(lambda number: messages.LoadAdapter(number, name, directory))
        self._adapters[name] = directory

    async def unload_adapter(self, name: str) -> None:
        """See `AsyncEngine`."""
        self._require("ready")
        self._adapters.pop(name, None)  # at once: no request may come between
        await self._call(lambda number: messages.UnloadAdapter(number, name))

    async def _open(self) -> socket.socket:
        """Starts the other side and returns our end."""
        raise NotImplementedError

    async def _close(self) -> None:
        """Waits until the other side is no more."""

    def _require(self, *states: State) -> None:
        if self._state not in states:
            raise EngineUnavailable(f"the engine is {self._state}")

    async def _call(self, message: Callable[[str], messages.ToEngine]) -> Any:
        self._number += 1
        number = str(self._number)
        reply = self._calls[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(message(number))
            return await reply
        finally:
            self._calls.pop(number, None)

    def _send(self, message: Launch | messages.ToEngine) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(messages.encode(message))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
                self._receive(messages.read_from_engine(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):  # of a write that failed, too
            pass
        finally:
            self._hang_up("the engine has died" if self._state != "loading" else "the engine died while it loaded")

    def _receive(self, message: messages.FromEngine) -> None:
        match message:
            case messages.Outputs():
                self.on_step(message.step_tokens)
                for output in message.outputs:
                    if output.request_id in self._streams:  # else it was aborted while this was on its way
                        self._streams[output.request_id].put(output)
            case messages.Ready():
                self._resolve("", message.max_model_len)
            case messages.Replied():
                self._resolve(message.request_id, message.reply)
            case messages.Done():
                self._resolve(message.request_id, None)
            case messages.Refused():
                error = UserError(message.what, where=message.where, mend=message.mend)
                if message.request_id in self._streams:
                    self._streams[message.request_id].put(error)
                else:
                    self._resolve(message.request_id, error)

    def _resolve(self, number: str, reply: Any) -> None:
        future = self._calls.pop(number, None)
        if future is not None and not future.done():
            future.set_exception(reply) if isinstance(reply, Exception) else future.set_result(reply)

    def _hang_up(self, reason: str) -> None:
        """Tells everyone who waits that nothing more will come."""
        self._state = "dead"
        if self._writer is not None:
            self._writer.close()
        for stream in self._streams.values():
            stream.put(EngineUnavailable(reason))
        for number in list(self._calls):
            self._resolve(number, EngineUnavailable(reason))


class ProcessEngine(RemoteEngine):
    """An engine in a process of its own.

    Args:
        model: a pulled name, a model directory or a GGUF file.
        config: how the engine divides its memory and its steps.
        dtype: `float32`, `bfloat16`, ...; None for the one the weights are stored in.
        device: `cpu`, `cuda`, `mps`.
        threads: CPU threads of the engine; None for as many as it finds.
        command: what starts the process; the number of its socket is added.
        adapters: see `RemoteEngine`.
    """

    def __init__(
        self,
        model: str,
        config: EngineConfig,
        *,
        dtype: str | None = None,
        device: str = "cpu",
        threads: int | None = None,
        command: Sequence[str] = (sys.executable, "-m", "intaglio.serving.worker"),
        adapters: Mapping[str, str] = _NO_ADAPTERS,
    ) -> None:
        super().__init__(Launch(model, dtype, device, threads, config), adapters)
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._end: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """The process, once there is one."""
        return self._process.pid if self._process else None

    def spawn(self) -> None:
        """Starts the process before `start` does, so that it imports what it needs while its caller still does."""
        self._end, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen([*self._command, str(number)], pass_fds=[number])

    async def _open(self) -> socket.socket:
        if self._end is None:
            self.spawn()
        ours, self._end = self._end, None
        assert ours is not None
        return ours

    async def _close(self) -> None:
        if self._process is None:
            return
        try:
            await asyncio.to_thread(self._process.wait, _PATIENCE)
        except subprocess.TimeoutExpired:
            logger.warning("the engine did not end by itself")
            self._process.kill()
            await asyncio.to_thread(self._process.wait)


def _read_none(directory: str) -> Any:
    raise UserError("this engine takes no adapters")


class LocalEngine(RemoteEngine):
    """An engine in a thread of this process: the same messages over the same kind of socket.

    Args:
        engine: what runs; nobody else may use it meanwhile.
        read_adapter: reads adapters for its model.
        adapters: see `RemoteEngine`.
    """

    def __init__(
        self,
        engine: SteppedEngine,
        read_adapter: ReadAdapter = _read_none,
        adapters: Mapping[str, str] = _NO_ADAPTERS,
    ) -> None:
        super().__init__(Launch("", None, "cpu", None, EngineConfig()), adapters)
        self._engine, self._read_adapter = engine, read_adapter
        self._thread: threading.Thread | None = None

    async def _open(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._thread = threading.Thread(target=work, args=(theirs, self._build), daemon=True)
        self._thread.start()
        return ours

    def _build(self, launch: Launch) -> tuple[SteppedEngine, ReadAdapter]:
        return self._engine, self._read_adapter

    async def _close(self) -> None:
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, _PATIENCE)
