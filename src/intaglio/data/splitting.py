"""Held-out examples, chosen by what they say: the same ones on every machine and in whatever order they are read."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from intaglio.data.store import Store, View
from intaglio.errors import UserError

__all__ = ["Split", "held_out", "held_out_prompts", "split"]

_LINE = re.compile(r"[:#]\d+$")
_WINDOW = 13  # tokens; long enough that two texts share few by chance (GPT-3, appendix C, decontaminates by 13-grams)
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no bit of a token is lost

_BITS = 24
_REST = np.uint64(64 - _BITS)


@dataclass(frozen=True)
class Split:
    """Two sides of a store.

    Attributes:
        train: what is learned from.
        validation: what is held out.
        removed: examples on neither side: held out, had training not contained them too.
    """

    train: View
    validation: View
    removed: int


def split(
    store: Store,
    share: float,
    by: Literal["content", "file"] = "content",
    near: float | None = None,
) -> Split:
    """Holds out about `share` of the examples.

    An example is held out if the hash of its ids (of all the ids of its file) falls into the lowest `share` of all
    hashes. What training contains too is then removed from the held-out side: equal examples always, and with `near`
    similar ones.

    Args:
        store: the examples.
        share: between 0 and 1.
        by: `file` puts all examples of a file on one side; several of one source are seldom independent.
        near: a held-out example is removed if more than this share of its windows of 13 tokens is in training.

    Raises:
        UserError: a share that is no share, or one that leaves a side empty.
    """
    if not 0 < share < 1:
        raise UserError(f"a validation share of {share}", mend="give one between 0 and 1")
    digests = _digests(store)
    outside = _lowest(digests if by == "content" else _digests_of_files(store, digests), share)
    train, validation = np.flatnonzero(~outside), np.flatnonzero(outside)
    known = np.isin(digests[validation], digests[train])
    if near is not None and len(validation):
        known |= _shared(store, validation, train) > near
    if not len(train) or known.all():
        side = "validation" if len(train) else "training"
        raise _one_sided(side, len(store), share)
    return Split(View.of(store, train), View.of(store, validation[~known]), int(known.sum()))


def held_out(store: Store, share: float) -> np.ndarray:
    """`(n,)` bool, whether each example falls into the lowest `share` by its ids: as `split` by content, row by row."""
    return _lowest(_digests(store), share)


def held_out_prompts(prompts: Sequence[np.ndarray], share: float) -> np.ndarray:
    """`(n,)` bool, the same for examples that go on from a prompt: all those of equal ids are on one side.

    Args:
        prompts: of each example the ids of its prompt.
        share: between 0 and 1; 0 holds nothing out.

    Raises:
        UserError: a share that is no share, or one that leaves a side empty.
    """
    if not 0 <= share < 1:
        raise UserError(f"a validation share of {share}", mend="give one between 0 and 1")
    outside = _lowest(np.array([_digest(ids.tobytes()) for ids in prompts], dtype=np.uint64), share)
    if share and (outside.all() or not outside.any()):
        side = "training" if outside.all() else "validation"
        raise _one_sided(side, len(prompts), share)
    return outside


def _one_sided(side: str, count: int, share: float) -> UserError:
    what = f"nothing is left for {side} of {count} examples at a validation share of {share}"
    return UserError(what, mend="take another share, or 0 to hold nothing out")


def _digests(store: Store) -> np.ndarray:
    return np.array([_digest(store[i].ids.tobytes()) for i in range(len(store))], dtype=np.uint64)


def _lowest(digests: np.ndarray, share: float) -> np.ndarray:
    return digests < np.uint64(int(share * 2**64))


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _digests_of_files(store: Store, digests: np.ndarray) -> np.ndarray:
    """For each example the hash of all that its file says; its name is not asked, which differs between machines."""
    numbers: dict[str, int] = {}
    file = np.array([numbers.setdefault(_LINE.sub("", store[i].where), len(numbers)) for i in range(len(store))])
    of_file = [_digest(digests[file == number].tobytes()) for number in range(len(numbers))]
    return np.array(of_file, dtype=np.uint64)[file]


def _shared(store: Store, examples: Sequence[int] | np.ndarray, others: Iterable[int]) -> np.ndarray:
    """For each of `examples` the share of its windows that `others` have; 0 for one that is too short to have any."""
    windows = [_windows(store[int(i)].ids) for i in examples]
    known = np.unique(np.concatenate(windows))
    seen = np.zeros(len(known), dtype=bool)
    maybe = np.zeros(1 << _BITS, dtype=bool)  # by the highest bits: most windows need no search
    maybe[known >> _REST] = True
    for i in others if len(known) else ():
        here = _windows(store[int(i)].ids)
        here = here[maybe[here >> _REST]]
        places = np.searchsorted(known, here).clip(max=len(known) - 1)
        seen[places[known[places] == here]] = True
    return np.array([seen[np.searchsorted(known, own)].mean() if len(own) else 0.0 for own in windows])


def _windows(ids: np.ndarray) -> np.ndarray:
    """A hash of each window, a polynomial in its tokens modulo 2^64; `(L - 12,)` uint64."""
    count = max(len(ids) - _WINDOW + 1, 0)
    wide = ids.astype(np.uint64)
    hashes = np.zeros(count, dtype=np.uint64)
    for place in range(_WINDOW):
        hashes = hashes * _FACTOR + wide[place : place + count]
    return hashes
