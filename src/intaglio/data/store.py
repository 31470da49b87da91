"""What a set of examples is to those who read it, wherever the examples are kept; and some of them in another order."""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from intaglio.data.examples import Example

__all__ = ["InMemory", "Source", "Store", "View"]


class Store(Protocol):
    """Examples by number."""

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, `(n,)` integers."""

    def __len__(self) -> int: ...

    def __getitem__(self, i: int) -> Example: ...


@runtime_checkable
class Source(Protocol):
    """Examples to train on, epoch after epoch."""

    def windows(self, epoch: int, seed: int, first: int = 0) -> Iterator[Store]:
        """The examples of an epoch in its order, a window at a time; what is packed together is in one window.

        Args:
            epoch: from 0.
            seed: decides the order, together with `epoch`.
            first: the window to begin with.
        """


class InMemory:
    """A store of examples that are at hand."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, `(n,)` int32."""
        return np.array([len(example.ids) for example in self._examples], dtype=np.int32)

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, i: int) -> Example:
        return self._examples[i]


class View:
    """Examples of some stores in a chosen order; nothing is copied.

    Args:
        stores: where the examples are.
        store: `(n,)` integers, which of `stores` each example is from.
        index: `(n,)` integers, its number there.
    """

    def __init__(self, stores: Sequence[Store], store: np.ndarray, index: np.ndarray) -> None:
        self._stores, self._store, self._index = stores, store, index

    @classmethod
    def of(cls, store: Store, index: np.ndarray) -> "View":
        """Some examples of one store."""
        return cls([store], np.zeros(len(index), dtype=np.int32), np.asarray(index, dtype=np.int64))

    @classmethod
    def joined(cls, stores: Sequence[Store]) -> "View":
        """All examples of some stores, one store behind the other."""
        counts = [len(store) for store in stores]
        index = [np.arange(count, dtype=np.int64) for count in counts]
        return cls(stores, np.repeat(np.arange(len(stores)), counts), np.concatenate([np.empty(0, np.int64), *index]))

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each example, `(n,)` int32."""
        lengths = np.empty(len(self), dtype=np.int32)
        for number, store in enumerate(self._stores):
            here = self._store == number
            lengths[here] = store.lengths[self._index[here]]
        return lengths

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, i: int) -> Example:
        return self._stores[self._store[i]][int(self._index[i])]
