"""Pipeline tables: the orders in which PyTorch's own schedules run, what they hold, and what is refused."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from intaglio.errors import UserError
from intaglio.planning.schedules import Action, Table, live_chunks, live_peak, schedule
from intaglio.specs.parallel import PipelineSpec

torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

THEIRS = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "looped_bfs": "LoopedBFS",
    "interleaved_zero_bubble": "InterleavedZeroBubble",
    "zbv_zero_bubble": "ZBVZeroBubble",
    "dual_pipe_v": "DualPipeV",
}
KINDS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}


def table(name: str, ranks: int, micro_batches: int, chunks: int | None = None) -> Table:
    """Ours."""
    return schedule(PipelineSpec(ranks=ranks, schedule=name, chunks=chunks), micro_batches)


def engine_schedule(name: str, ranks: int, micro_batches: int, chunks: int, rank: int = 0) -> Any:
    """PyTorch's schedule over stages that compute nothing."""
    sizes = {"group_rank": rank, "group_size": ranks, "num_stages": ranks * chunks, "stage_index": rank}
    stages = [mock.MagicMock(**sizes) for _ in range(chunks)]
    kind = torch_schedules.get_schedule_class(THEIRS[name])
    return kind(stages[0] if chunks == 1 else stages, micro_batches)


def engine_orders(name: str, ranks: int, micro_batches: int, chunks: int) -> tuple[tuple[Action, ...], ...]:
    """What PyTorch's ranks compute: as its table says, or, where the table is not what is run, as they run."""
    if chunks == 1:
        return tuple(_calls(name, ranks, micro_batches, rank) for rank in range(ranks))
    orders = engine_schedule(name, ranks, micro_batches, chunks).pipeline_order
    return tuple(tuple(_flat(orders[rank])) for rank in range(ranks))


def engine_pairs(ranks: int, micro_batches: int) -> set[Action]:
    """Forwards that DualPipeV makes one piece with a backward."""
    orders = engine_schedule("dual_pipe_v", ranks, micro_batches, 2).pipeline_order
    pairs = [action.sub_actions for order in orders.values() for action in order if action and action.sub_actions]
    return {next(_flat(pair)) for pair in pairs}


def _flat(order: Any) -> Iterator[Action]:
    for action in order:
        if action and action.sub_actions:
            yield from _flat(action.sub_actions)
        elif action and action.computation_type.name in KINDS:
            kind: Any = KINDS[action.computation_type.name]
            yield Action(kind, action.stage_index, action.microbatch_index)


def _calls(name: str, ranks: int, micro_batches: int, rank: int) -> tuple[Action, ...]:
    """The single-stage schedules run by code of their own, and their tables are off by one: see what they call."""
    seen: list[Action] = []
    engine = engine_schedule(name, ranks, micro_batches, 1, rank)
    stage = engine._stage
    for ops in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
        getattr(stage, ops).return_value = []
    stage.forward_one_chunk.side_effect = lambda m, *_, **__: seen.append(Action("F", rank, m))
    stage.backward_one_chunk.side_effect = lambda m, **_: seen.append(Action("B", rank, m))
    engine._initialize_stage = mock.MagicMock()
    engine._step_microbatches([()] * micro_batches, [{}] * micro_batches)
    return tuple(seen)


@pytest.mark.parametrize(
    ("name", "chunks", "sizes"),
    [
        ("gpipe", 1, [(1, 2), (3, 2), (4, 8)]),
        ("1f1b", 1, [(1, 3), (2, 2), (3, 5), (4, 9)]),
        ("interleaved_1f1b", 2, [(2, 2), (3, 2), (4, 8), (3, 9)]),
        ("interleaved_1f1b", 3, [(2, 6), (3, 3)]),
        ("looped_bfs", 2, [(2, 3), (4, 5)]),
        ("looped_bfs", 3, [(3, 4)]),
        ("interleaved_zero_bubble", 2, [(4, 1), (2, 3), (4, 8), (3, 9)]),
        ("interleaved_zero_bubble", 3, [(3, 6), (2, 8)]),
        ("zbv_zero_bubble", 2, [(1, 1), (2, 2), (3, 9), (4, 4), (4, 11)]),
        ("dual_pipe_v", 2, [(1, 2), (2, 4), (3, 7), (4, 12), (5, 10)]),
    ],
)
def test_orders_are_pytorchs(name: str, chunks: int, sizes: list[tuple[int, int]]) -> None:
    for ranks, micro_batches in sizes:
        ours = table(name, ranks, micro_batches, chunks)
        assert ours.orders == engine_orders(name, ranks, micro_batches, chunks), (ranks, micro_batches)
        if name == "dual_pipe_v":
            assert ours.paired == engine_pairs(ranks, micro_batches)
        else:
            assert not ours.paired


@pytest.mark.parametrize("name", THEIRS)
def test_every_micro_batch_goes_through_every_stage_once(name: str) -> None:
    made = table(name, 4, 12)
    for rank, order in enumerate(made.orders):
        stages = made.held[rank]
        assert [made.rank_of(stage) for stage in stages] == [rank] * made.chunks
        wanted = {(stage, m) for stage in stages for m in range(12)}
        of_kind = {kind: [(a.stage, a.micro_batch) for a in order if a.kind in kind] for kind in ("F", "BI", "BW")}
        assert all(sorted(done) == sorted(wanted) for done in of_kind.values())
    assert sorted(stage for held in made.held for stage in held) == list(range(made.stages))


@pytest.mark.parametrize(
    ("name", "live"),
    [
        ("gpipe", (8, 8, 8, 8)),
        ("1f1b", (4, 3, 2, 1)),
        ("interleaved_1f1b", (11, 9, 7, 5)),
        ("looped_bfs", (16, 16, 16, 16)),
        ("interleaved_zero_bubble", (8, 8, 8, 8)),
        ("zbv_zero_bubble", (8, 8, 8, 8)),
        ("dual_pipe_v", (9, 9, 9, 9)),
    ],
)
def test_chunks_that_live_at_once(name: str, live: tuple[int, ...]) -> None:
    assert live_chunks(table(name, 4, 8)) == live


def test_the_worst_moment_weighs_stages() -> None:
    """Rank 0 of an interleaved pipeline holds seven of its first stage and four of its second, then eight and three."""
    order = table("interleaved_1f1b", 4, 8).orders[0]
    assert live_peak(order, {0: 1, 4: 1}) == 11
    assert live_peak(order, {0: 100, 4: 1}) == 803
    assert live_peak(order, {0: 1, 4: 100}) == 407


@pytest.mark.parametrize(
    ("name", "micro_batches", "words"),
    [
        ("1f1b", 3, "3 micro-batches for 1f1b over 4 ranks, which needs 4 or more"),
        ("dual_pipe_v", 7, "needs 8 or more"),
        ("interleaved_1f1b", 9, "9 micro-batches are not 2 equal rounds"),
        ("interleaved_zero_bubble", 13, "take a multiple of 4"),
    ],
)
def test_what_the_engine_cannot_run_is_one_line(name: str, micro_batches: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        table(name, 4, micro_batches)
    with pytest.raises(ValueError, match=r"."):
        engine_schedule(name, 4, micro_batches, PipelineSpec(ranks=4, schedule=name).chunks_a_rank)
