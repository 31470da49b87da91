"""Several gloo ranks on this machine, each a process of its own, as torchrun would start them.

Processes are forked off one that has imported torch already, so that a rank costs a fraction of a second.
"""

import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

__all__ = ["run_ranks"]

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel",
        "torch.distributed.pipelining",
        "torch.distributed.checkpoint",
        "intaglio.training.run",
        "pytest",
    ]
)


def run_ranks(
    world: int, function: Callable[..., Any], *args: Any, timeout: float = 300, join: bool = True
) -> list[Any]:
    """Calls a function in `world` processes that are the ranks of one gloo group; what each returned, by rank.

    Args:
        world: ranks.
        function: of a module, not of a function: ranks import it. A rank asks `torch.distributed` which one it is;
            RANK, LOCAL_RANK and WORLD_SIZE are in its environment.
        args: given to it, pickled; so is what it returns.
        timeout: seconds for all; a collective that hangs gives up a little earlier, so that it tells where.
        join: whether the group stands when the function is called; else the function makes it, from MASTER_ADDR and
            MASTER_PORT as under torchrun.

    Raises:
        Exception: what the first rank to fail raised, with its traceback as a note; the others are ended.
        TimeoutError: some rank was not done in time; names them.
    """
    with tempfile.TemporaryDirectory() as folder:
        call = pickle.dumps((function, args))
        environment = {**os.environ, "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), **_rendezvous()}
        started = [_start(rank, call, environment, Path(folder) / "meet", timeout, join) for rank in range(world)]
        try:
            return _collect({pipe: rank for rank, (_, pipe) in enumerate(started)}, time.monotonic() + timeout)
        finally:
            for process, pipe in started:
                _end(process, pipe)


def _rendezvous() -> dict[str, str]:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}


def _start(
    rank: int, call: bytes, environment: dict[str, str], meet: Path, timeout: float, join: bool
) -> tuple[BaseProcess, Connection]:
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    environment = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    process = _CONTEXT.Process(target=_rank, args=(theirs, call, environment, str(meet), timeout, join), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _rank(pipe: Connection, call: bytes, environment: dict[str, str], meet: str, timeout: float, join: bool) -> None:
    """A rank's life: join, call, tell."""
    os.environ.clear()
    os.environ.update(environment)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        if join:
            rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            patience = timedelta(seconds=timeout * 0.9)
            dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world, timeout=patience)
        function, args = pickle.loads(call)
        told: tuple[float, Any, str | None] = (time.monotonic(), function(*args), None)
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
    except BaseException as error:
        told = (time.monotonic(), error, traceback.format_exc())
    pipe.send_bytes(_pickled(told))


def _pickled(told: tuple[float, Any, str | None]) -> bytes:
    try:
        said = pickle.dumps(told)
        pickle.loads(said)  # there are errors that go in and do not come out
    except Exception as error:
        when, value, trace = told
        return pickle.dumps(
            (when, RuntimeError(f"cannot be told: {value!r}: {error}"), trace or traceback.format_exc())
        )
    return said


def _collect(pipes: dict[Connection, int], deadline: float) -> list[Any]:
    world, found = len(pipes), dict[int, Any]()
    while len(found) < world:
        waiting = [pipe for pipe, rank in pipes.items() if rank not in found]
        ready = connection.wait(waiting, max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"ranks {sorted(pipes[pipe] for pipe in waiting)} were not done in time")
        told = {pipes[pipe]: _received(pipe) for pipe in ready if isinstance(pipe, Connection)}
        _raise_first(told)
        found |= {rank: value for rank, (_, value, _) in told.items()}
    return [found[rank] for rank in range(world)]


def _received(pipe: Connection) -> tuple[float, Any, str | None]:
    try:
        told: tuple[float, Any, str | None] = pickle.loads(pipe.recv_bytes())
    except EOFError:
        return time.monotonic(), RuntimeError("died without a word"), "nothing is known"
    return told


def _raise_first(told: dict[int, tuple[float, Any, str | None]]) -> None:
    """Raises the earliest error there is: those after it are mostly its consequences."""
    failed = sorted((when, rank, error, trace) for rank, (when, error, trace) in told.items() if trace is not None)
    for _, rank, error, trace in failed:
        error.add_note(f"on rank {rank}:\n{trace}")
        raise error


def _end(process: BaseProcess, pipe: Connection) -> None:
    pipe.close()
    process.join(0.5)
    if process.is_alive():
        process.kill()
        process.join()
