"""A load generator that is too slow is told."""

import asyncio
import resource
import time

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.load.self_check import Watch, room_for, watching
from virtual_time import run_virtual


def test_a_loop_that_is_free_has_no_lag() -> None:
    async def test() -> Watch:
        with watching() as watch:
            await asyncio.sleep(10)
        return watch

    watch = run_virtual(test())
    assert len(watch.lags) == 639
    assert watch.found()["loop_lag_max_s"] == 0.0
    assert list(watch.warnings(None, None)) == []


def test_a_loop_that_is_held_up_is_seen() -> None:
    async def test() -> Watch:
        with watching() as watch:
            for _ in range(5):
                await asyncio.sleep(0.02)
                time.sleep(0.04)
        return watch

    watch = asyncio.run(test())
    assert watch.found()["loop_lag_max_s"] > 0.02
    assert "late by" in next(watch.warnings(None, None))


def test_the_share_of_a_core_is_the_processs(monkeypatch: pytest.MonkeyPatch) -> None:
    worked = iter([1.0, 10.0])
    monkeypatch.setattr("intaglio.evaluation.load.self_check.time.process_time", lambda: next(worked))

    async def test() -> Watch:
        with watching() as watch:
            await asyncio.sleep(10)
        return watch

    assert run_virtual(test()).cpu_share == 0.9


def test_each_reason_is_a_line() -> None:
    watch = Watch([0.02] * 100, 0.95)
    lines = list(watch.warnings(0.2, 0.1))
    assert [line.split()[-5:] for line in lines[:1]] == [["too", "long", "by", "as", "much"]]
    assert "95% of a core" in lines[1]
    assert "200 ms too late" in lines[2]
    assert len(list(watch.warnings(0.01, 0.1))) == 2
    assert len(list(watch.warnings(0.01, 0.5))) == 1  # 20 ms beside half a second a token


def test_there_is_room_for_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: (100, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda what, limits: set_to.append(limits))
    room_for(30)
    assert set_to == []
    room_for(500)
    assert set_to == [(564, 1000)]
    with pytest.raises(UserError, match="2000 requests at once need more open files than the 1000"):
        room_for(2000)
