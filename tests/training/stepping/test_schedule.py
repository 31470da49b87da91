"""Learning rates by hand."""

import pytest

from intaglio.training.stepping.schedule import ScheduleSpec


def test_warm_up_is_linear_and_reaches_the_peak() -> None:
    schedule = ScheduleSpec(kind="constant", warmup=4)
    assert [schedule.factor(step, 10) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert ScheduleSpec(warmup=0.1).warmup_steps(200) == 20


@pytest.mark.parametrize(
    ("kind", "middle", "last"),
    [("linear", 0.55, 0.1), ("cosine", 0.55, 0.1), ("constant", 1.0, 1.0), ("wsd", 1.0, 0.1)],
)
def test_shapes(kind: str, middle: float, last: float) -> None:
    schedule = ScheduleSpec.model_validate({"kind": kind, "warmup": 0, "final": 0.1})
    assert schedule.factor(0, 101) == pytest.approx(1.0)
    assert schedule.factor(50, 101) == pytest.approx(middle)
    assert schedule.factor(100, 101) == pytest.approx(last)


def test_wsd_falls_in_its_last_share_only() -> None:
    schedule = ScheduleSpec(kind="wsd", warmup=0, final=0, decay=0.2)
    assert schedule.factor(80, 101) == pytest.approx(1.0)
    assert schedule.factor(90, 101) == pytest.approx(0.5)


def test_inverse_square_root() -> None:
    schedule = ScheduleSpec(kind="inverse_sqrt", warmup=100)
    assert schedule.factor(99, 1000) == pytest.approx(1.0)
    assert schedule.factor(399, 1000) == pytest.approx(0.5)
