"""Micro-batches: labels never cross a document's border, and the stream goes on exactly where it stopped."""

import json
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from intaglio.data.examples import Example
from intaglio.data.mixture import Mixture, Part
from intaglio.data.packing import Method
from intaglio.data.store import InMemory, Store
from intaglio.errors import UserError
from intaglio.training.batching.batches import Batch, BatchStream, evaluation_batches, make_batch


def example(ids: list[int], supervised: list[int] | None = None, where: str = "") -> Example:
    mask = [0] + [1] * (len(ids) - 1) if supervised is None else supervised
    return Example(np.array(ids, dtype=np.int32), np.array(mask, dtype=bool), where)


def documents(count: int, longest: int = 9) -> InMemory:
    """Each id occurs once: the document's number in the hundreds."""
    lengths = np.random.default_rng(0).integers(1, longest + 1, count).tolist()
    return InMemory([example([100 * n + i for i in range(length)], where=f"f:{n}") for n, length in enumerate(lengths)])


class Windows:
    """A source of four windows, one of them empty."""

    def windows(self, epoch: int, seed: int, first: int = 0) -> Iterator[Store]:
        stores = [documents(20), InMemory([]), documents(9, longest=4), documents(3)]
        yield from stores[first:]


def same(a: list[Batch], b: list[Batch]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x.ids, y.ids)
        and torch.equal(x.labels, y.labels)
        and torch.equal(x.positions, y.positions)
        and (x.documents, x.num_targets, x.wheres) == (y.documents, y.num_targets, y.wheres)
        for x, y in zip(a, b, strict=True)
    )


def test_no_document_is_trained_to_predict_the_next_ones_first_token() -> None:
    batch = make_batch([example([1, 2], [1, 1], "a"), example([3, 4], [1, 1], "b")])
    assert batch.ids.tolist() == [[1, 2, 3, 4]]
    assert batch.labels.tolist() == [[2, -100, 4, -100]]
    assert batch.positions.tolist() == [[0, 1, 0, 1]]
    assert (batch.documents, batch.num_targets, batch.wheres) == ([2, 2], 2, ["a", "b"])
    assert batch.ids.dtype == batch.labels.dtype == batch.positions.dtype == torch.int64


def test_packing_keeps_the_mask_of_each_chat() -> None:
    chats = InMemory([example([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 1, 1]), example([7, 8, 9, 7, 8, 9], [0, 0, 0, 0, 1, 1])])
    (batch,) = evaluation_batches(chats, micro_batch=1, max_length=12)
    assert batch.labels.tolist() == [[-100, 3, 4, 5, 6, -100, -100, -100, -100, 8, 9, -100]]
    assert batch.num_targets == 6


def test_what_was_cut_is_a_document_of_its_own() -> None:
    (batch,) = evaluation_batches(InMemory([example([1, 2, 3, 4, 5])]), 2, max_length=3, packing="contiguous")
    assert batch.documents == [3, 2]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1]]
    assert batch.labels.tolist() == [[2, 3, -100, 5, -100]]


def test_a_batch_without_targets_says_so() -> None:
    batch = make_batch([example([1, 2], [0, 0]), example([3], [1])])
    assert batch.num_targets == 0
    assert set(batch.labels[0].tolist()) == {-100}


@pytest.mark.parametrize("packing", ["best_fit", "contiguous", "none"])
def test_an_epoch_reads_every_token_once_and_the_next_in_another_order(packing: Method) -> None:
    store = documents(50)
    everything = Counter(token for i in range(len(store)) for token in store[i].ids.tolist())
    stream = BatchStream(store, 1, 12, packing, seed=3)
    epochs: list[list[int]] = []
    for _ in range(2):
        epochs.append([token for _ in range(stream.num_rows) for token in stream.step(1)[0].ids[0].tolist()])
    assert Counter(epochs[0]) == Counter(epochs[1]) == everything
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("packing", ["best_fit", "contiguous", "none"])
@pytest.mark.parametrize("done", [0, 3, 9])
def test_resumed_equals_uninterrupted_across_epochs(packing: Method, done: int) -> None:
    mixture = Mixture([Part(documents(20), weight=1), Part(documents(5), weight=2)])
    through, stopped = (BatchStream(mixture, 3, 12, packing, seed=7) for _ in range(2))
    for _ in range(done):
        assert same(through.step(2), stopped.step(2))
    state = json.loads(json.dumps(stopped.state()))
    resumed = BatchStream(mixture, 3, 12, packing, seed=7)
    resumed.step(1)
    resumed.load_state(state)
    for _ in range(9):
        assert same(through.step(2), resumed.step(2))
    assert resumed.state() == through.state()
    assert through.epoch >= 2


@pytest.mark.parametrize("done", [0, 2, 5])
def test_resumed_equals_uninterrupted_on_a_source_that_comes_in_windows(done: int) -> None:
    through, stopped = (BatchStream(Windows(), 2, 12, seed=7) for _ in range(2))
    for _ in range(done):
        assert same(through.step(2), stopped.step(2))
    resumed = BatchStream(Windows(), 2, 12, seed=7)
    resumed.load_state(stopped.state())
    for _ in range(12):
        assert same(through.step(2), resumed.step(2))
    assert through.epoch >= 1


def test_ranks_together_read_what_one_process_reads() -> None:
    store = documents(40)
    single = BatchStream(store, 2, 12, seed=1)
    ranks = [BatchStream(store, 2, 12, seed=1).of_rank(rank, 3) for rank in range(3)]
    for _ in range(8):
        turns = zip(*(stream.step(2) for stream in ranks), strict=True)
        assert same([batch for turn in turns for batch in turn], single.step(6))
        assert all(stream.state() == single.state() for stream in ranks)


def test_seeds_differ() -> None:
    assert not same(
        BatchStream(documents(40), 2, 12, seed=1).step(2), BatchStream(documents(40), 2, 12, seed=2).step(2)
    )


def test_evaluation_ends_and_is_in_order() -> None:
    batches = list(evaluation_batches(documents(5), micro_batch=2, max_length=12, packing="none"))
    assert [batch.wheres for batch in batches] == [["f:0", "f:1"], ["f:2", "f:3"], ["f:4"]]


@pytest.mark.parametrize(
    "other",
    [
        BatchStream(documents(39), 2, 12),
        BatchStream(documents(40), 2, 12, seed=1),
        BatchStream(documents(40), 2, 13),
        BatchStream(documents(40), 2, 12, "none"),
    ],
    ids=["data", "seed", "length", "packing"],
)
def test_a_run_is_not_resumed_on_other_rows(other: BatchStream) -> None:
    with pytest.raises(UserError, match="are not those of the saved run"):
        other.load_state(BatchStream(documents(40), 2, 12).state())


def test_nothing_to_train_on_is_an_error() -> None:
    with pytest.raises(UserError, match="no examples to train on"):
        BatchStream(InMemory([]), 2, 12)


def test_efficiency_is_that_of_the_epoch() -> None:
    stream = BatchStream(InMemory([example([1, 2, 3]), example([4, 5])]), 1, 5)
    assert (stream.efficiency, stream.num_rows) == (1.0, 1)


def test_a_batch_moves_with_its_tensors() -> None:
    moved = make_batch([example([1, 2])]).to("meta")
    assert {moved.ids.device.type, moved.labels.device.type, moved.positions.device.type} == {"meta"}
    assert moved.documents == [2]
