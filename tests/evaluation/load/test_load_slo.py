"""Targets, the answers that keep them, and the search for the most load at which they are kept."""

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.load.latency import Sample
from intaglio.evaluation.load.slo import Targets, goodput, highest, parse_targets, rate_middle, whole_middle
from virtual_time import run_virtual


def answer(first: float, last: float, tokens: int, error: str = "") -> Sample:
    return Sample(0.0, 8, None, [first, last], last, last, 1, tokens, error=error)


def test_targets_are_read() -> None:
    assert parse_targets("ttft=500ms, tpot=50ms,latency=10s", 0.9) == Targets(0.5, 0.05, 10.0, 0.9)
    for text in ("ttft=500", "ttft", "speed=3ms", "ttft=xms", "ttft=1m", ""):
        with pytest.raises(UserError, match=r"--slo: .* is no target"):
            parse_targets(text, where="--slo")


def test_an_answer_keeps_all_targets_or_none() -> None:
    targets = parse_targets("ttft=1s,tpot=100ms,latency=2s")
    assert targets.met(answer(1.0, 2.0, 11))
    assert not targets.met(answer(1.001, 2.0, 11))
    assert not targets.met(answer(1.0, 2.0, 10))  # 111 ms a token
    assert not targets.met(answer(1.0, 2.001, 100))
    assert not targets.met(answer(1.0, 2.0, 11, error="timeout"))
    assert targets.met(answer(1.0, 2.0, 1))  # no time per token
    assert not targets.met(Sample(0.0, 8, last=1.0))  # never a first token
    assert Targets().met(Sample(0.0, 8))


def test_goodput_is_of_all_requests_over_the_whole_time() -> None:
    samples = [answer(0.5, 1.0, 5)] * 3 + [answer(2.0, 3.0, 5), answer(0.5, 1.0, 5, error="HTTP 500")]
    found = goodput(samples, Targets(ttft=1.0, attainment=0.6), 6.0)
    assert (found["met"], found["attainment"], found["requests_per_second"], found["kept"]) == (3, 0.6, 0.5, True)
    assert found["targets"] == {"ttft_s": 1.0, "attainment": 0.6}
    assert not goodput(samples, Targets(ttft=1.0, attainment=0.61), 6.0)["kept"]
    assert not goodput([], Targets(), 0.0)["kept"]


@pytest.mark.parametrize("limit", range(13))
def test_the_most_concurrency_is_found_exactly(limit: int) -> None:
    tried: list[int] = []

    async def keeps(load: int) -> bool:
        tried.append(load)
        return load <= limit

    assert run_virtual(highest(keeps, 1, 11, whole_middle)) == (min(limit, 11) or None)
    assert len(tried) == len(set(tried)) <= 8
    assert all(1 <= load <= 11 for load in tried)


@pytest.mark.parametrize("limit", [0.3, 0.5, 3.3, 50.0])
def test_the_highest_rate_is_found_within_a_twentieth(limit: float) -> None:
    async def keeps(load: float) -> bool:
        return load <= limit

    found = run_virtual(highest(keeps, 0.5, 10.0, rate_middle))
    if limit < 0.5:
        assert found is None
    else:
        assert found is not None
        assert found <= limit <= max(1.05 * found, 10.0 if found == 10.0 else 0.0) or found == 10.0
