"""One forward, told three ways: with a cache equals without, a row in a batch equals the row alone."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from intaglio.engine.cache import ContiguousCache
from intaglio.models.decoder import Decoder
from intaglio.parts.context import PAD, Causal, positions_of
from intaglio.specs import DynamicScaling
from zoo import CACHED, PairOf, random_ids

CLOSE = 1e-5
LENGTH = 24
CHUNKINGS = {
    "at once": [24],
    "token by token": [1] * 24,
    "prompt, then tokens": [16, *[1] * 8],
    "tokens between chunks": [8, 1, 1, 1, 1, 12],
    "chunks shorter than a window": [3] * 8,
    "chunks longer than a window": [9, 9, 6],
}
LENGTHS = [24, 9, 17]

every_cached = pytest.mark.parametrize("name", CACHED)


@torch.no_grad()
def run(model: Decoder, ids: Tensor, positions: Tensor, cache: ContiguousCache, chunks: Sequence[int]) -> Tensor:
    """Logits (B, T, V) of a forward in pieces."""
    pieces = [
        model(ids_piece, positions_piece, cache)
        for ids_piece, positions_piece in zip(ids.split(list(chunks), 1), positions.split(list(chunks), 1), strict=True)
    ]
    return torch.cat(pieces, dim=1)


@torch.no_grad()
def whole(model: Decoder, ids: Tensor) -> Tensor:
    """Logits of the plain forward: no cache, no padding."""
    return model(ids)


def counted(ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1]).expand_as(ids)


def gap(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


def padded(side: str) -> tuple[Tensor, Tensor, Tensor]:
    """ids (3, 24) with rows of 24, 9 and 17 real tokens, positions, and which are real; padding is random ids."""
    ids, filler = random_ids(3, LENGTH), random_ids(3, LENGTH, seed=9).clone()
    real = torch.zeros(3, LENGTH, dtype=torch.bool)
    for row, length in enumerate(LENGTHS):
        place = slice(LENGTH - length, LENGTH) if side == "left" else slice(0, length)
        real[row, place] = True
        filler[row, place] = ids[row, :length]
    return filler, positions_of(real), real


def gap_to_single(model: Decoder, logits: Tensor, real: Tensor) -> float:
    """The largest difference between a row in the batch and the same row alone."""
    ids = random_ids(3, LENGTH)
    rows = enumerate(LENGTHS)
    return max(gap(logits[row][real[row]], whole(model, ids[row : row + 1, :length])[0]) for row, length in rows)


@every_cached
def test_cached_equals_uncached(name: str, pair_of: PairOf) -> None:
    model, ids = pair_of(name).ours, random_ids(3, LENGTH)
    expected = whole(model, ids)
    for chunking, chunks in CHUNKINGS.items():
        cache = ContiguousCache(model.spec, 3, LENGTH)
        assert gap(run(model, ids, counted(ids), cache, chunks), expected) <= CLOSE, chunking
        bytes_per_row = model.spec.kv_cache_bytes(LENGTH, "float32")
        assert sum(tensor.nbytes for tensor in cache.tensors()) == 3 * bytes_per_row, chunking


@every_cached
@pytest.mark.parametrize("spare", [1, 40])
def test_room_to_spare_changes_nothing(name: str, spare: int, pair_of: PairOf) -> None:
    """Unused slots of a cache are never seen, whatever they hold."""
    model, ids = pair_of(name).ours, random_ids(3, LENGTH)
    cache = ContiguousCache(model.spec, 3, LENGTH + spare)
    assert gap(run(model, ids, counted(ids), cache, [16, *[1] * 8]), whole(model, ids)) <= CLOSE
    bytes_per_row = model.spec.kv_cache_bytes(LENGTH + spare, "float32")
    assert sum(tensor.nbytes for tensor in cache.tensors()) == 3 * bytes_per_row


@every_cached
@pytest.mark.parametrize("side", ["left", "right"])
def test_batch_equals_single(name: str, side: str, pair_of: PairOf) -> None:
    model = pair_of(name).ours
    ids, positions, real = padded(side)
    with torch.no_grad():
        logits = model(ids, positions)
    assert logits.isfinite().all()
    assert gap_to_single(model, logits, real) <= CLOSE


@every_cached
def test_cached_batch_equals_single(name: str, pair_of: PairOf) -> None:
    model = pair_of(name).ours
    ids, positions, real = padded("left")
    for chunks in ([24], [16, *[1] * 8], [16, 8], [8, 1, 1, 1, 1, 12], [3] * 8, [20, 1, 3], [9, 9, 6], [1] * 24):
        cache = ContiguousCache(model.spec, 3, LENGTH)
        logits = run(model, ids, positions, cache, chunks)
        assert logits.isfinite().all(), chunks
        assert gap_to_single(model, logits, real) <= CLOSE, chunks


@every_cached
def test_a_row_of_nothing_but_padding(name: str, pair_of: PairOf) -> None:
    """It yields numbers nobody reads, no NaN, and leaves its neighbours alone."""
    model, ids = pair_of(name).ours, random_ids(2, LENGTH)
    positions = counted(ids).clone()
    positions[1] = PAD
    expected = whole(model, ids[:1])[0]
    with torch.no_grad():
        uncached = model(ids, positions)
    cached = run(model, ids, positions, ContiguousCache(model.spec, 2, LENGTH), [10, *[1] * 14])
    for logits in (uncached, cached):
        assert logits.isfinite().all()
        assert gap(logits[0], expected) <= CLOSE


@every_cached
def test_padding_is_never_seen(name: str, pair_of: PairOf) -> None:
    model = pair_of(name).ours
    ids, positions, real = padded("left")
    other = torch.where(real, ids, (ids + 1) % model.spec.vocab_size)
    with torch.no_grad():
        one, two = model(ids, positions), model(other, positions)
    assert gap(one[real], two[real]) <= 1e-6


def test_windows_bound_the_cache(pair_of: PairOf) -> None:
    spec = pair_of("mistral-window").ours.spec
    assert spec.kv_cache_bytes(60) == spec.kv_cache_bytes(6) == 6 * spec.kv_bytes_per_token()


class PlannedFor(Causal):
    """An uncached forward told the length that its rows were planned for."""

    def __init__(self, lengths: Tensor) -> None:
        self.lengths = lengths

    def planned(self, positions: Tensor) -> Tensor:
        return self.lengths[:, None]


def test_dynamic_scaling_turns_cached_keys_by_the_planned_length(pair_of: PairOf) -> None:
    """Every key of a row is turned by the base of the length planned for it, so a cache never mixes two bases."""
    model, ids = pair_of("llama-dynamic").ours, random_ids(3, 50)
    rope = model.spec.blocks[0].attention.rope
    assert rope is not None
    assert isinstance(rope.scaling, DynamicScaling)
    planned = torch.tensor([50, 20, 37])  # beyond the trained length of 24, within it, beyond
    with torch.no_grad():
        expected = model(ids, None, PlannedFor(planned))
    for chunks in ([50], [30, *[1] * 20], [1] * 50):
        cache = ContiguousCache(model.spec, 3, 50, planned=planned)
        assert gap(run(model, ids, counted(ids), cache, chunks), expected) <= CLOSE
    assert gap(expected[:1], whole(model, ids[:1])) <= CLOSE  # planned for what it became: the plain forward
    assert gap(expected[1, :20], whole(model, ids[1:2, :20])[0]) <= CLOSE
    assert gap(expected[2:, :37], whole(model, ids[2:, :37])) <= CLOSE
    assert gap(expected[2:], whole(model, ids[2:])) > 100 * CLOSE  # and planned for less is another model


def test_dynamic_scaling_plans_for_the_whole_cache_by_default(pair_of: PairOf) -> None:
    model, ids = pair_of("llama-dynamic").ours, random_ids(2, 40)
    default = run(model, ids, counted(ids), ContiguousCache(model.spec, 2, 50), [20, *[1] * 20])
    told = ContiguousCache(model.spec, 2, 50, planned=torch.tensor([50, 50]))
    assert torch.equal(default, run(model, ids, counted(ids), told, [20, *[1] * 20]))


def test_dynamic_scaling_in_a_ragged_batch(pair_of: PairOf) -> None:
    """Each row has the base of its own length, not of its neighbours'; padding does not count."""
    model, ids = pair_of("llama-dynamic").ours, random_ids(2, 50)
    real = torch.ones(2, 50, dtype=torch.bool)
    real[1, :20] = False
    with torch.no_grad():
        logits = model(torch.cat((ids[:1], ids[1:].roll(20, dims=1))), positions_of(real))
    assert gap(logits[:1], whole(model, ids[:1])) <= CLOSE
    assert gap(logits[1:, 20:], whole(model, ids[1:, :30])) <= CLOSE


def test_fewer_queries_than_keys_align_at_the_bottom_right(pair_of: PairOf) -> None:
    """Case 15: the last of the queries sees every key, not the first few (SDPA's own `is_causal` says top left)."""
    model, ids = pair_of("llama-grouped").ours, random_ids(1, LENGTH)
    changed = ids.clone()
    changed[0, 10] = (changed[0, 10] + 1) % model.spec.vocab_size
    last = [run(model, x, counted(x), ContiguousCache(model.spec, 1, LENGTH), [20, 4])[:, 20:] for x in (ids, changed)]
    assert gap(last[0], whole(model, ids)[:, 20:]) <= CLOSE
    assert gap(*last) > 100 * CLOSE  # token 10 is seen by tokens 20 to 23
