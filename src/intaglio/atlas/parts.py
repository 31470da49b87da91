"""The parts of a measurement, each made once: a file keeps those that are finished, and a later call makes the rest."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from intaglio.atlas.findings import Finding
from intaglio.errors import UserError
from intaglio.files import read_json, write_json

__all__ = ["Claims", "Part", "Results", "Stage", "measure"]

Results = Mapping[str, Any]
"""Name of a part -> what it came to, as JSON."""

Part = Callable[[Path, Results], Any]
"""Makes a part in a folder it may use, out of those of the stages before its own."""

Stage = Mapping[str, Part]
"""Parts that know nothing of each other, by name: they may be made side by side."""


class Claims(Protocol):
    """A group of claims that are measured together."""

    name: ClassVar[str]
    """Of its files."""

    def plain(self) -> dict[str, Any]:
        """Its sizes, as JSON: parts of other sizes are others."""

    def stages(self) -> Sequence[Stage]:
        """What is to be made, in this order."""

    def finding(self, results: Results) -> Finding:
        """What all parts together say."""


def measure(claims: Claims, folder: Path, say: Callable[[str], None], jobs: int = 1) -> Finding:
    """Makes the parts that are not kept in `folder` yet, and concludes.

    Args:
        claims: what is measured.
        folder: where parts are kept.
        say: is told of each part that begins.
        jobs: parts of a stage that are made at the same time, each in a process of its own. What is timed wants 1.

    Raises:
        UserError: the folder has parts of other sizes; or see the parts.
        KeyboardInterrupt: a signal ended it; finished parts are kept.
    """
    file, size, stages = folder / f"{claims.name}.json", claims.plain(), claims.stages()
    results = _kept(file, size)
    places = {name: place for place, name in enumerate((name for stage in stages for name in stage), 1)}

    def begun(name: str) -> None:
        say(f"{claims.name} {places[name]}/{len(places)}: {name}")

    before: dict[str, Any] = {}
    for stage in stages:
        missing = {name: part for name, part in stage.items() if name not in results}
        for name, made in _made(missing, folder / claims.name, dict(before), jobs, begun):
            results[name] = made
            write_json(file, {"size": size, "parts": results}, indent=None)
        before |= {name: results[name] for name in stage}
    return claims.finding(results)


def _kept(file: Path, size: dict[str, Any]) -> dict[str, Any]:
    if not file.exists():
        return {}
    kept = read_json(file)
    if kept["size"] != size:
        raise UserError("holds measurements of another size", where=str(file), mend="take another --out")
    parts: dict[str, Any] = kept["parts"]
    return parts


def _made(
    parts: Stage, folder: Path, before: Results, jobs: int, begun: Callable[[str], None]
) -> Iterator[tuple[str, Any]]:
    """The parts as they are finished."""
    if jobs > 1 and len(parts) > 1:
        yield from _side_by_side(parts, folder, before, jobs, begun)
        return
    for name, part in parts.items():
        begun(name)
        yield name, part(folder, before)


def _side_by_side(
    parts: Stage, folder: Path, before: Results, jobs: int, begun: Callable[[str], None]
) -> Iterator[tuple[str, Any]]:
    """`jobs` at a time and none in waiting, so that after Ctrl-C no further one begins."""
    waiting, running = iter(parts.items()), dict[Future[Any], str]()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_apart) as pool, _stopping_all():
        while True:
            while len(running) < jobs and (following := next(waiting, None)):
                name, part = following
                begun(name)
                running[pool.submit(part, folder, before)] = name
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(done), done.result()


@contextmanager
def _stopping_all() -> Iterator[None]:
    """Hands an interruption on to the processes beside, once, so that a run saves what it did."""
    try:
        yield
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            os.kill(process.pid or 0, signal.SIGINT)
        raise


def _apart() -> None:
    """A process that Ctrl-C in a terminal does not reach by itself, and that ends without a word where it is idle."""
    os.setpgrp()
    signal.signal(signal.SIGINT, lambda number, frame: sys.exit(1))
