"""Pipelines run in the head: bubbles as a simulation of PyTorch's own tables gives them, and by closed forms."""

import pytest

from intaglio.planning.schedules import Action, Table, schedule
from intaglio.planning.simulation import Run, StageTime, simulate
from intaglio.specs.parallel import PipelineSpec


def run(name: str, ranks: int, micro_batches: int, times: StageTime | None = None, send: float = 0.0) -> Run:
    """Every stage alike."""
    made = schedule(PipelineSpec(ranks=ranks, schedule=name), micro_batches)
    return simulate(made, [times] * made.stages if times else None, send)


@pytest.mark.parametrize(
    ("name", "of_8", "of_16"),
    [
        ("gpipe", 0.273, 0.158),
        ("1f1b", 0.273, 0.158),
        ("interleaved_1f1b", 0.158, 0.086),
        ("looped_bfs", 0.158, 0.086),
        ("interleaved_zero_bubble", 0.059, 0.030),
        ("zbv_zero_bubble", 0.059, 0.030),
        ("dual_pipe_v", 0.111, 0.059),
    ],
)
def test_bubbles_of_four_ranks(name: str, of_8: float, of_16: float) -> None:
    assert run(name, 4, 8).bubble == pytest.approx(of_8, abs=5e-4)
    assert run(name, 4, 16).bubble == pytest.approx(of_16, abs=5e-4)


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 3), (3, 8), (5, 10)])
def test_closed_forms(ranks: int, micro_batches: int) -> None:
    """(p - 1) / (M + p - 1) for one chunk; with v chunks vM in the place of M, where rounds are full."""
    for name in ("gpipe", "1f1b"):
        assert run(name, ranks, micro_batches).bubble == pytest.approx((ranks - 1) / (micro_batches + ranks - 1))
    assert run("interleaved_1f1b", ranks, 2 * ranks).bubble == pytest.approx((ranks - 1) / (5 * ranks - 1))


def test_zero_bubble_in_each_ranks_own_span() -> None:
    assert run("zbv_zero_bubble", 4, 8).gaps == pytest.approx((0, 0, 0, 0))
    uneven = run("zbv_zero_bubble", 4, 8, StageTime(1.0, 1.4, 0.6))
    assert max(uneven.gaps) > 0.01  # only where F, I and W take equally long


def test_two_ranks_by_hand() -> None:
    """F 1, backward 2, 1F1B, M = 2: rank 0 waits for the gradient from 2 to 4, and from 6 to 7 for the second."""
    rows = run("1f1b", 2, 2).rows
    assert [(s.action, s.start, s.end) for s in rows[0]] == [
        (Action("F", 0, 0), 0, 1),
        (Action("F", 0, 1), 1, 2),
        (Action("B", 0, 0), 4, 6),
        (Action("B", 0, 1), 7, 9),
    ]
    assert [(s.start, s.end) for s in rows[1]] == [(1, 2), (2, 4), (4, 5), (5, 7)]


def test_sends_take_time_between_ranks_only() -> None:
    """In a V the last rank hands its own two stages on at once; p - 1 hops there and as many back."""
    plain, slow = run("zbv_zero_bubble", 2, 1), run("zbv_zero_bubble", 2, 1, send=0.25)
    assert slow.makespan - plain.makespan == pytest.approx(4 * 0.25)  # 0 to 1, 1 to 0, and back
    alone = run("1f1b", 1, 3, send=5.0)
    assert alone.makespan == 9
    assert alone.bubble == 0


def test_a_slow_last_stage_holds_all_up() -> None:
    made = schedule(PipelineSpec(ranks=2), 6)
    times = [StageTime(1, 1, 1), StageTime(2, 2, 2)]
    assert simulate(made, times).makespan == pytest.approx(1 + 6 * 6 + 2)


def test_ranks_that_wait_for_each_other_are_seen() -> None:
    crossed = Table(
        2, 1, 1, ((Action("B", 0, 0), Action("F", 0, 0)), (Action("F", 1, 0), Action("B", 1, 0))), ((0,), (1,))
    )
    with pytest.raises(ValueError, match=r"ranks \[0, 1\] wait for each other"):
        simulate(crossed)
