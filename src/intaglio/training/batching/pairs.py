"""Pairs of a source and a target, for models that read the one whole and write the other.

They come from rows of prompt and completion: what is not supervised is the source, what is, with the EOS behind it,
the target. A micro-batch holds pairs of like lengths, so that little of it is padding.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from intaglio.data.formats import Sample
from intaglio.data.packing import PackedRows, pack
from intaglio.data.store import Source, Store
from intaglio.errors import UserError
from intaglio.training.batching.batches import IGNORE, Batch, BatchStream, make_batch

__all__ = ["PairBatch", "PairStream", "checked_pairs", "pair_batches"]


@dataclass(frozen=True)
class PairBatch(Batch):
    """Pairs, each a document of source and target; and both sides as rows, zeros on the right.

    Attributes:
        source: (B, S) int64.
        source_lengths: (B,) int64.
        target: (B, T) int64, with the EOS.
        target_lengths: (B,) int64.
    """

    source: torch.Tensor
    source_lengths: torch.Tensor
    target: torch.Tensor
    target_lengths: torch.Tensor


class PairStream(BatchStream):
    """A `BatchStream` of `PairBatch`.

    The pairs of an epoch are sorted by the lengths of target and source, equal ones at random, and cut into batches,
    which come in random order.

    Args:
        source, seed: see `BatchStream`.
        micro_batch: pairs.
        max_length: of no pair more tokens than that.
    """

    def __init__(self, source: Source | Store, micro_batch: int, max_length: int, seed: int = 0) -> None:
        super().__init__(source, micro_batch, max_length, "none", seed)

    @property
    def efficiency(self) -> float:
        """The share of a batch's places, padding on both sides included, that hold a token."""
        return self._efficiency

    def step(self, accumulation: int) -> list[Batch]:
        """See `BatchStream.step`; the batches are `PairBatch`."""
        return [_pairs(batch) for batch in super().step(accumulation)]

    def _arranged(self, store: Store, rng: np.random.Generator) -> PackedRows:
        sizes = _sizes(store)
        batches = _alike(sizes, self._micro_batch)
        self._efficiency = _filled(sizes, batches)
        whole = [batch for batch in batches if len(batch) == self._micro_batch]
        order = [whole[i] for i in rng.permutation(len(whole))] + batches[len(whole) :]
        return pack(store.lengths, self._max_length, self._packing).ordered(np.concatenate([*order, _NONE]))


def pair_batches(store: Store, micro_batch: int) -> Iterator[PairBatch]:
    """Every pair of `store` once, those of like lengths together."""
    for batch in _alike(_sizes(store), micro_batch):
        yield _pairs(make_batch([store[int(i)] for i in batch]))


def checked_pairs(samples: Iterable[Sample]) -> Iterator[tuple[str, str]]:
    """Source and target of each sample.

    Raises:
        UserError: a row that is no pair of texts, or has nothing as its source.
    """
    for sample in samples:
        if not isinstance(sample.prompt, str) or not isinstance(sample.completion, str):
            raise UserError("objective seq2seq needs rows of prompt and completion, as texts", where=sample.where)
        if not sample.prompt:
            raise UserError("an empty source", where=f"{sample.where}: prompt", mend="leave the row out")
        yield sample.prompt, sample.completion


_NONE = np.empty(0, dtype=np.int64)


def _sizes(store: Store) -> np.ndarray:
    """(n, 2): tokens of source and target."""
    sources = np.array([int(store[i].supervised.argmax()) for i in range(len(store))], dtype=np.int64)
    return np.stack([sources, store.lengths - sources], axis=1)


def _alike(sizes: np.ndarray, micro_batch: int) -> list[np.ndarray]:
    """The numbers of pairs of like lengths, `micro_batch` together; fewer in the last."""
    order = np.lexsort((sizes[:, 0], sizes[:, 1]))
    return [order[start : start + micro_batch] for start in range(0, len(order), micro_batch)]


def _filled(sizes: np.ndarray, batches: list[np.ndarray]) -> float:
    places = sum(int(sizes[batch].max(axis=0).sum()) * len(batch) for batch in batches)
    return int(sizes.sum()) / places if places else 1.0


def _pairs(batch: Batch) -> PairBatch:
    """A batch of whole examples, taken apart at the first token that is to be learned."""
    documents = batch.ids[0].split(batch.documents)
    learned = batch.labels[0].ne(IGNORE).split(batch.documents)
    borders = [int(places.int().argmax()) + 1 for places in learned]  # a label stands a place before its token
    sources = [ids[:border] for ids, border in zip(documents, borders, strict=True)]
    targets = [ids[border:] for ids, border in zip(documents, borders, strict=True)]
    return PairBatch(
        **{field.name: getattr(batch, field.name) for field in fields(Batch)},
        source=pad_sequence(sources, batch_first=True),
        source_lengths=torch.tensor(borders),
        target=pad_sequence(targets, batch_first=True),
        target_lengths=torch.tensor(batch.documents) - torch.tensor(borders),
    )
