"""Data that are tokenised while they are trained on, for what does not fit on disk a second time.

Rows come in the order of the files, shuffled within a window (see `data.streaming`), never across the whole. An example
is held out by the hash of its ids, as `data.splitting` does it, and never trained on, so that equal rows are all on one
side; what is measured on are those of the first window, since later ones are not known before they are read.

What such a run has not: a length (`steps` says where it ends), more than one source, a split by file, held-out rows
removed because similar ones are trained on, and measures that read all texts at once.
"""

from collections.abc import Iterator

import numpy as np

from intaglio.data.splitting import held_out
from intaglio.data.store import Source, Store, View
from intaglio.errors import UserError

__all__ = ["WithoutHeldOut", "first_held_out"]


class WithoutHeldOut:
    """A source's examples (see `Source`) but the `share` that is held out."""

    def __init__(self, source: Source, share: float) -> None:
        self._source, self._share = source, share

    def windows(self, epoch: int, seed: int, first: int = 0) -> Iterator[Store]:
        """See `Source`."""
        for store in self._source.windows(epoch, seed, first):
            yield View.of(store, np.flatnonzero(~held_out(store, self._share)))


def first_held_out(source: Source, share: float) -> Store:
    """The held-out examples of a source's first window.

    Raises:
        UserError: it has none.
    """
    store = next(source.windows(0, 0))
    places = np.flatnonzero(held_out(store, share))
    if share and not len(places):
        raise UserError(
            f"the first window holds nothing out at a validation share of {share}", mend="take a larger one"
        )
    return View.of(store, places)
