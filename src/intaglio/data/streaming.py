"""Examples tokenised as they are read and not kept: for more text than there is room for on disk.

They come in the order of the files, a window of some sixteen megabytes of text at a time, shuffled inside the window.
Going on from the middle of an epoch reads the files from the beginning and tokenises nothing that was used before.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from intaglio.data.encoding import Encoder, add_counts, chunks, encode_chunks
from intaglio.data.examples import Counts
from intaglio.data.readers import read_rows
from intaglio.data.store import InMemory, Store
from intaglio.errors import UserError

__all__ = ["Streamed"]


class Streamed:
    """A source (see `Source`) that is read anew each epoch.

    Args:
        source: a file, folder or glob (see `read_rows`).
        encoder: how rows become examples.
        workers: processes; None: one a core.
        window: chunks of a megabyte of text that are shuffled and packed together.

    Attributes:
        counts: what became of the rows read so far, all epochs together.
    """

    def __init__(self, source: str | Path, encoder: Encoder, workers: int | None = None, window: int = 16) -> None:
        self._source, self._encoder, self._workers, self._window = source, encoder, workers, window
        self.counts = Counts()

    def windows(self, epoch: int, seed: int, first: int = 0) -> Iterator[Store]:
        """The epoch's examples (see `Source`); a window may be empty, an epoch may not.

        Raises:
            UserError: as `read_rows` and `Encoder`; an epoch without examples.
        """
        work = islice(chunks(read_rows(self._source)), first * self._window, None)
        encoded = encode_chunks(work, self._encoder, self._workers)
        found, number = first > 0, first
        while parts := list(islice(encoded, self._window)):
            examples = [example for part in parts for example in part.examples()]
            for part in parts:
                add_counts(self.counts, part.counts)
            order = np.random.default_rng([seed, epoch, number]).permutation(len(examples))
            yield InMemory([examples[i] for i in order])
            found, number = found or bool(examples), number + 1
        if not found:
            raise UserError("no row gives an example to train on", where=str(self._source))
