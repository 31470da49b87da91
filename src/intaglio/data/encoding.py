"""Rows to examples, on every core: in chunks of about a megabyte, which come back in the order of the rows.

Processes, because a chat is rendered and masked in Python; spawned ones, because forking a process that has threads is
not safe. A little text is not worth starting them for.
"""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from intaglio.data.examples import Counts, Example, MaskPolicy, OverLong, Supervise, encode_samples
from intaglio.data.formats import Format, Sample, detect, to_sample
from intaglio.data.readers import Row
from intaglio.errors import UserError
from intaglio.text.chat import ChatTemplate
from intaglio.text.tokenizer import Tokenizer

__all__ = ["Encoded", "Encoder", "add_counts", "chunks", "encode_chunks", "num_cores"]

_CHUNK = 1 << 20  # characters
_IN_PROCESS = 4  # chunks that are encoded here before others are called in: about as long as starting them takes


@dataclass(frozen=True)
class Encoded:
    """The examples of a chunk, and what became of its rows.

    Attributes:
        ids: of all examples, `(T,)` int32.
        supervised: `(T,)` bool.
        lengths: tokens of each example, `(n,)` int32.
        wheres: the place of each example.
        counts: of the rows.
        formats: of the rows.
    """

    ids: np.ndarray
    supervised: np.ndarray
    lengths: np.ndarray
    wheres: list[str]
    counts: Counts
    formats: Counter[str]

    def examples(self) -> list[Example]:
        """The examples apart; views of the arrays."""
        ends = np.cumsum(self.lengths).tolist()
        spans = zip([0, *ends], ends, self.wheres, strict=False)
        return [Example(self.ids[start:end], self.supervised[start:end], where) for start, end, where in spans]


@dataclass(frozen=True)
class Encoder:
    """How rows become examples; all of it, so that equal encoders give equal examples.

    Attributes:
        tokenizer: gives the ids.
        supervise: see `MaskPolicy`.
        template: Jinja source of a chat template, instead of the tokenizer's own.
        max_length: tokens an example may have; None where packing cuts documents anyway.
        over_long: what becomes of longer ones.
        format: of every row; None: each row's own, as `detect` finds it.
    """

    tokenizer: Tokenizer
    supervise: Supervise | None = None
    template: str | None = None
    max_length: int | None = None
    over_long: OverLong = "truncate"
    format: Format | None = None

    def __call__(self, rows: Sequence[Row]) -> Encoded:
        """The examples of some rows.

        Raises:
            UserError: as `to_sample` and `encode_sample`.
        """
        counts, formats, policy = Counts(), Counter[str](), self.policy()
        samples = self._samples(rows, formats)
        examples = list(encode_samples(samples, self.tokenizer, policy, counts, self.max_length, self.over_long))
        return Encoded(
            np.concatenate([np.empty(0, np.int32), *(example.ids for example in examples)]),
            np.concatenate([np.empty(0, np.bool_), *(example.supervised for example in examples)]),
            np.array([len(example.ids) for example in examples], dtype=np.int32),
            [example.where for example in examples],
            counts,
            formats,
        )

    def policy(self) -> MaskPolicy:
        """What `encode_sample` is told. Made anew each time: a compiled template cannot go to another process."""
        if self.template is None:
            return MaskPolicy(self.supervise)
        return MaskPolicy(self.supervise, ChatTemplate(self.template, self.tokenizer.special_tokens))

    def identity(self) -> dict[str, Any]:
        """All that decides what it makes of a row, as JSON."""
        return {
            "tokenizer": self.tokenizer.backend.to_str(),
            "special_tokens": self.tokenizer.special_tokens,
            "chat_templates": self.tokenizer.chat_templates,
            "supervise": self.supervise,
            "template": self.template,
            "max_length": self.max_length,
            "over_long": self.over_long,
            "format": self.format,
        }

    def _samples(self, rows: Iterable[Row], formats: Counter[str]) -> Iterator[Sample]:
        for row in rows:
            format = self.format or detect(row)
            formats[format] += 1
            yield to_sample(row, format)


def chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows in lists of about a megabyte of text; a longer one is in a list with what came before it."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += _characters(row.value)
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def encode_chunks(work: Iterable[list[Row]], encoder: Encoder, workers: int | None = None) -> Iterator[Encoded]:
    """Encodes chunks on `workers` processes (None: one a core), in order and only a few ahead of who asks.

    Raises:
        UserError: as `Encoder`, or the processes were ended from outside.
    """
    left = iter(work)
    workers = num_cores() if workers is None else workers
    for chunk in left if workers < 2 else islice(left, _IN_PROCESS):
        yield encoder(chunk)
    first = next(left, None)
    if first is None:
        return
    try:
        yield from _in_processes([first], left, encoder, workers)
    except BrokenProcessPool as error:
        raise UserError(
            "the processes that tokenise were ended (out of memory, or a script that starts them when it is imported)",
            mend="put the script's own work under `if __name__ == '__main__':`, or take fewer workers",
        ) from error


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def add_counts(total: Counts, more: Counts) -> None:
    """Adds `more` to `total`."""
    for name, value in vars(more).items():
        setattr(total, name, getattr(total, name) + value)


def _in_processes(
    first: Iterable[list[Row]], left: Iterator[list[Row]], encoder: Encoder, workers: int
) -> Iterator[Encoded]:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(encoder,))
    running: deque[Future[Encoded]] = deque()
    try:
        running.extend(pool.submit(_encode, chunk) for chunk in [*first, *islice(left, 2 * workers)])
        while running:
            encoded = running.popleft().result()
            running.extend(pool.submit(_encode, chunk) for chunk in islice(left, 1))
            yield encoded
    finally:
        pool.shutdown(cancel_futures=True)


_encoder: Encoder  # of this worker process


def _start(encoder: Encoder) -> None:
    """In a worker: Ctrl-C is its parent's to handle, and it does not outlive a parent that was killed."""
    global _encoder
    _encoder = encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode(chunk: list[Row]) -> Encoded:
    return _encoder(chunk)


def _characters(value: Any) -> int:
    """About how much text a row's value holds; an id counts as four characters."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_characters, value.values()))
    if isinstance(value, (list, tuple)):
        return 4 * len(value) if value and isinstance(value[0], int) else sum(map(_characters, value))
    return 4
