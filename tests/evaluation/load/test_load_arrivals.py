"""When requests go out: exactly where it is not chance, and by its distribution where it is."""

import asyncio
import random
from itertools import islice, pairwise
from statistics import mean, pvariance

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.load.arrivals import (
    Bursty,
    ClosedLoop,
    Constant,
    Moments,
    OpenLoop,
    Poisson,
    Ramp,
    parse_moments,
)
from intaglio.evaluation.load.clock import now
from intaglio.evaluation.load.conversations import Conversation, Turn
from intaglio.evaluation.load.latency import Sample
from virtual_time import run_virtual


class Busy:
    """Holds a conversation in half a second; its sample is when it began."""

    def __init__(self) -> None:
        self.running = self.most = 0

    async def __call__(self, conversation: Conversation, due: float | None) -> list[Sample]:
        sample = Sample(now() if due is None else due, conversation[0].max_tokens, now())
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.5)
        self.running -= 1
        return [sample]


def asked(count: int) -> list[Conversation]:
    return [(Turn("x", number),) for number in range(count)]


def test_a_closed_loop_keeps_so_many_running() -> None:
    busy = Busy()
    samples = run_virtual(ClosedLoop(3).run(busy, asked(20)))
    assert busy.most == 3
    assert sorted(sample.wanted_tokens for sample in samples) == list(range(20))
    assert max(sample.start for sample in samples) == 3.0  # the seventh round of 3


def test_after_its_time_a_closed_loop_begins_nothing() -> None:
    samples = run_virtual(ClosedLoop(2).run(Busy(), asked(100), until=1.25))
    assert len(samples) == 6
    assert max(sample.start for sample in samples) == 1.0


def test_an_open_loop_waits_for_nobody_and_counts_from_when_a_request_was_due() -> None:
    busy = Busy()
    samples = run_virtual(OpenLoop(8, Constant()).run(busy, asked(16)))
    assert [sample.start for sample in samples] == [number / 8 for number in range(16)]
    assert [sample.lateness for sample in samples] == [0.0] * 16
    assert busy.most == 4  # of half a second each, an eighth of a second apart
    samples = run_virtual(OpenLoop(8, Constant()).run(busy, asked(100), until=1.0))
    assert len(samples) == 8


def distances(moments: Moments, rate: float, seconds: float = 100.0, count: int = 20_000) -> list[float]:
    offsets = [0.0, *islice(moments.offsets(rate, seconds, random.Random(1)), count)]
    return [after - before for before, after in pairwise(offsets)]


@pytest.mark.parametrize(
    ("moments", "variation"), [(Poisson(), 1.0), (Bursty(1.0), 1.0), (Bursty(0.25), 4.0), (Bursty(4.0), 0.25)]
)
def test_distances_have_their_mean_and_variation(moments: Moments, variation: float) -> None:
    found = distances(moments, 5.0)
    assert mean(found) == pytest.approx(0.2, rel=0.05)
    assert pvariance(found) / mean(found) ** 2 == pytest.approx(variation, rel=0.1)


def test_the_same_seed_is_the_same_moments() -> None:
    assert distances(Poisson(), 5.0, count=9) == distances(Poisson(), 5.0, count=9)


@pytest.mark.parametrize(("first", "last"), [(1.0, 9.0), (9.0, 1.0), (5.0, 5.0)])
def test_a_ramp_rises_in_a_line_and_then_stays(first: float, last: float) -> None:
    """Over 1,000 seconds, the numbers sent in tenths of it are the integrals of the rate over them."""
    offsets = list(islice(Ramp(first).offsets(last, 1000.0, random.Random(1)), 8000))
    assert offsets == sorted(offsets)
    for tenth in range(10):
        sent = sum(100 * tenth <= offset < 100 * (tenth + 1) for offset in offsets)
        expected = 100 * (first + (last - first) * (tenth + 0.5) / 10)
        assert sent == pytest.approx(expected, abs=4 * expected**0.5)
    behind = [offset for offset in offsets if offset >= 1000.0]
    assert len(behind) / (behind[-1] - 1000.0) == pytest.approx(last, rel=0.1)


def test_ways_to_arrive_are_named() -> None:
    for text in ("poisson", "constant", "bursty:0.25", "ramp:0.5"):
        assert parse_moments(text).name == text
    for text in ("", "bursty", "ramp:0", "bursty:-1", "poisson:2", "ramp:x", "steady"):
        with pytest.raises(UserError, match=r"--arrivals: .* is no way to arrive"):
            parse_moments(text, "--arrivals")


def test_levels_have_a_number_of_requests_where_nobody_says_one() -> None:
    assert [ClosedLoop(n).count() for n in (1, 16)] == [8, 64]
    assert [OpenLoop(rate).count() for rate in (0.1, 2.0)] == [8, 60]


def test_a_server_that_is_gone_is_not_tried_all_the_time() -> None:
    async def hold(conversation: Conversation, due: float | None) -> list[Sample]:
        return [Sample(now(), 1, error="cannot connect")]

    samples = run_virtual(ClosedLoop(2).run(hold, asked(1000), until=2.0))
    assert len(samples) == 16
