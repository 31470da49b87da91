"""The engine behind a socket: what goes in and comes out, abort, refusal, and death without a hang."""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from intaglio.engine.interface import EngineConfig, Output
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.serving.client import AsyncEngine, EngineUnavailable
from intaglio.serving.remote import LocalEngine, ProcessEngine, RemoteEngine
from stepped_engine import POISON, SteppedToy, read_step

TOY = (sys.executable, str(Path(__file__).parents[1] / "stepped_engine.py"))


def params(tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, **more)


def in_process(model: str = "toy", **adapters: Path) -> ProcessEngine:
    directories = {name: str(folder) for name, folder in adapters.items()}
    return ProcessEngine(model, EngineConfig(), command=TOY, adapters=directories)


@asynccontextmanager
async def running(engine: RemoteEngine) -> AsyncIterator[RemoteEngine]:
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def run(test: Callable[[RemoteEngine], Coroutine[Any, Any, None]], engine: RemoteEngine) -> None:
    async def whole() -> None:
        async with asyncio.timeout(60), running(engine):  # a hang is a failure, not a wait
            await test(engine)

    asyncio.run(whole())


async def collect(engine: AsyncEngine, name: str, prompt: list[int], asked: SamplingParams) -> list[Output]:
    return [output async for output in engine.generate(name, prompt, asked)]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():
        await asyncio.sleep(0.01)


async def idle(engine: AsyncEngine) -> bool:
    stats = await engine.stats()
    return stats.running == stats.waiting == 0 and stats.free_blocks == stats.num_blocks


def test_the_log_says_what_there_is_room_for(caplog: pytest.LogCaptureFixture) -> None:
    async def test(engine: RemoteEngine) -> None:
        blocks = (await engine.stats()).num_blocks
        assert blocks > 0
        assert f"a context of {engine.max_model_len} tokens; {blocks} blocks of 16 for keys and values" in caplog.text

    with caplog.at_level(logging.INFO):
        run(test, LocalEngine(SteppedToy()))


def test_many_requests_at_once_keep_to_themselves() -> None:
    async def test(engine: RemoteEngine) -> None:
        names = range(100, 150)
        all_outputs = await asyncio.gather(*(collect(engine, str(i), [i], params(i % 7 + 1)) for i in names))
        for i, outputs in zip(names, all_outputs, strict=True):
            assert [output.token_ids for output in outputs] == [[i + k + 1] for k in range(i % 7 + 1)]
            assert [output.finish_reason for output in outputs] == [None] * (i % 7) + ["length"]
        assert not engine.busy

    run(test, LocalEngine(SteppedToy()))


def test_all_choices_come_before_the_end() -> None:
    async def test(engine: RemoteEngine) -> None:
        outputs = await collect(engine, "a", [5], params(2, n=3))
        assert sorted((output.choice, output.token_ids[0]) for output in outputs) == [
            (choice, token) for choice in range(3) for token in (6, 7)
        ]

    run(test, LocalEngine(SteppedToy()))


def test_a_refused_request_is_the_engines_one_line_and_the_next_one_runs() -> None:  # case 06
    async def test(engine: RemoteEngine) -> None:
        with pytest.raises(UserError, match=r"^prompt: 64 tokens do not fit into 64$"):
            await collect(engine, "long", [1] * 64, params(1))
        assert len(await collect(engine, "short", [1], params(2))) == 2
        assert await idle(engine)

    run(test, LocalEngine(SteppedToy()))


def test_leaving_early_aborts() -> None:  # case 19
    async def test(engine: RemoteEngine) -> None:
        async def leave(name: str) -> None:
            async with aclosing(engine.generate(name, [1], params(50))) as outputs:
                await anext(outputs)

        await asyncio.gather(*(leave(str(i)) for i in range(100)))
        await until(lambda: idle(engine))
        assert not engine.busy
        assert len(await collect(engine, "next", [1], params(3))) == 3

    run(test, LocalEngine(SteppedToy(pause=0.001)))


def test_a_cancelled_task_aborts() -> None:  # case 20
    async def test(engine: RemoteEngine) -> None:
        task = asyncio.create_task(collect(engine, "a", [1], params(60)))
        await until(lambda: _is_running(engine))
        task.cancel()
        await until(lambda: idle(engine))
        assert not engine.busy

    run(test, LocalEngine(SteppedToy(pause=0.01)))


async def _is_running(engine: AsyncEngine) -> bool:
    return (await engine.stats()).running == 1


def test_abort_ends_every_choice() -> None:
    async def test(engine: RemoteEngine) -> None:
        reasons = []
        async for output in engine.generate("a", [1], params(60, n=2)):
            reasons.append(output.finish_reason)
            if len(reasons) == 2:
                await engine.abort("a")
        assert reasons[-2:] == ["abort", "abort"]
        await engine.abort("nobody")
        await until(lambda: idle(engine))

    run(test, LocalEngine(SteppedToy(pause=0.001)))


def test_the_same_name_twice_is_a_mistake() -> None:
    async def test(engine: RemoteEngine) -> None:
        outputs = engine.generate("a", [1], params(60))
        await anext(outputs)
        with pytest.raises(ValueError, match="'a' already"):
            await collect(engine, "a", [1], params(1))
        await outputs.aclose()

    run(test, LocalEngine(SteppedToy(pause=0.001)))


def test_embeddings_and_scores_come_back_in_order() -> None:
    async def test(engine: RemoteEngine) -> None:
        assert await engine.embed([[1], [1, 2]], pooling="last", normalize=False) == [[1, 1, 0], [2, 1, 0]]
        assert await engine.score([[1, 2], [5]]) == [[3.0], [5.0]]
        with pytest.raises(UserError, match="empty"):
            await engine.score([[]])
        assert await engine.embed([[1], [1, 2]], adapter="x") == [[5, 0, 1], [10, 0, 1]]
        assert await engine.score([[1, 2], [5]], adapter="x") == [[15.0], [25.0]]
        for asked in (engine.embed([[1]], adapter="y"), engine.score([[1]], adapter="y")):
            with pytest.raises(UserError, match="no adapter 'y'"):
                await asked

    run(test, LocalEngine(SteppedToy(adapters={"x": 5})))


def test_parameters_cross_whole() -> None:
    seen = []

    class Watching(SteppedToy):
        def add(self, request_id: str, prompt_ids: Any, params: SamplingParams, **more: Any) -> None:
            seen.append((params, more))
            super().add(request_id, prompt_ids, params, **more)

    asked = params(1, n=2, stop=("x", "é"), logit_bias={5: -100.0}, seed=2**63, top_p=0.5, logprobs=0, bad_words=("b",))

    async def test(engine: RemoteEngine) -> None:
        async for _ in engine.generate("a", [1], asked, priority=-3, salt=b"\xff", adapter="x"):
            pass

    run(test, LocalEngine(Watching(adapters={"x": 2})))
    assert seen == [(asked, {"priority": -3, "salt": b"\xff", "adapter": "x"})]


def toy_adapter(folder: Path, step: int) -> Path:
    """What `read_step` reads."""
    folder.mkdir(exist_ok=True)
    (folder / "step").write_text(str(step))
    return folder


async def tokens(engine: AsyncEngine, adapter: str | None, made: int = 3) -> list[int]:
    """What is made of the prompt 100."""
    outputs = engine.generate(f"under {adapter}", [100], params(made), adapter=adapter)
    return [token async for output in outputs for token in output.token_ids]


def test_adapters_come_and_go_while_requests_run(tmp_path: Path) -> None:
    ten, twenty = str(toy_adapter(tmp_path / "10", 10)), str(toy_adapter(tmp_path / "20", 20))

    async def test(engine: RemoteEngine) -> None:
        with pytest.raises(UserError, match="no adapter 'x'"):
            await tokens(engine, "x")
        await engine.load_adapter("x", ten)
        await engine.load_adapter("y", twenty)
        assert set(engine.adapters) == {"x", "y"}
        found = await asyncio.gather(*(tokens(engine, name) for name in ("x", None, "y")))
        assert found == [[110, 120, 130], [101, 102, 103], [120, 140, 160]]
        with pytest.raises(UserError, match="an adapter 'x' already"):
            await engine.load_adapter("x", twenty)
        with pytest.raises(UserError, match=r"nowhere: no adapter for a toy"):
            await engine.load_adapter("z", str(tmp_path / "nowhere"))
        assert set(engine.adapters) == {"x", "y"}
        longest = asyncio.create_task(tokens(engine, "x", 40))
        await until(lambda: _is_running(engine))
        await engine.unload_adapter("x")
        assert set(engine.adapters) == {"y"}
        with pytest.raises(UserError, match="no adapter 'x'"):
            await collect_under(engine, "x")
        await engine.load_adapter("x", twenty)
        assert await longest == [100 + 10 * i for i in range(1, 41)]  # what ran has kept it
        assert await tokens(engine, "x") == [120, 140, 160]
        with pytest.raises(UserError, match="no adapter 'nobody'"):
            await engine.unload_adapter("nobody")

    run(test, LocalEngine(SteppedToy(pause=0.002), read_step))


async def collect_under(engine: AsyncEngine, adapter: str) -> list[Output]:
    return [output async for output in engine.generate("another", [1], params(1), adapter=adapter)]


def test_adapters_are_there_before_it_is_ready_and_after_its_death(tmp_path: Path) -> None:
    first, late, lost = (toy_adapter(tmp_path / name, step) for name, step in (("a", 10), ("b", 20), ("c", 30)))
    engine = in_process(first=first)

    async def test(_: RemoteEngine) -> None:
        assert await tokens(engine, "first") == [110, 120, 130]
        await engine.load_adapter("late", str(late))
        await engine.load_adapter("lost", str(lost))
        await engine.load_adapter("gone", str(lost))
        await engine.unload_adapter("gone")
        (lost / "step").unlink()
        with pytest.raises(EngineUnavailable):
            await collect(engine, "b", [POISON], params(1))
        await engine.ended()
        with pytest.raises(EngineUnavailable, match="dead"):
            await engine.load_adapter("more", str(late))
        await engine.start()
        assert set(engine.adapters) == {"first", "late"}
        found = await asyncio.gather(*(tokens(engine, name) for name in ("first", "late")))
        assert found == [[110, 120, 130], [120, 140, 160]]

    run(test, engine)


def test_an_adapter_that_is_none_ends_the_launch(tmp_path: Path) -> None:
    async def launch() -> None:
        engine = LocalEngine(SteppedToy(), read_step, {"x": str(tmp_path)})
        with pytest.raises(UserError, match="no adapter for a toy"):
            await engine.start()
        await engine.stop()

    asyncio.run(launch())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_death_over_an_adapter_is_no_hang() -> None:
    async def launch() -> None:
        def die(directory: str) -> None:
            raise AssertionError("a mistake of ours")

        engine = LocalEngine(SteppedToy(), die, {"x": "", "y": ""})
        with pytest.raises(EngineUnavailable):
            await asyncio.wait_for(engine.start(), 30)
        await engine.stop()

    asyncio.run(launch())


def test_draining_lets_requests_end_and_takes_no_more() -> None:
    async def test(engine: RemoteEngine) -> None:
        task = asyncio.create_task(collect(engine, "a", [1], params(20)))
        await until(lambda: _is_running(engine))
        drained = asyncio.create_task(engine.drain(60))
        await asyncio.sleep(0)
        assert (engine.state, engine.alive) == ("draining", False)
        with pytest.raises(EngineUnavailable, match="draining"):
            await collect(engine, "b", [1], params(1))
        await drained
        assert len(await task) == 20

    run(test, LocalEngine(SteppedToy(pause=0.005)))


def test_before_it_stands_it_takes_nothing() -> None:
    engine = in_process()
    assert (engine.state, engine.alive) == ("loading", False)
    with pytest.raises(EngineUnavailable, match="loading"):
        asyncio.run(collect(engine, "a", [1], params(1)))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_exception_in_a_step_is_the_death_of_the_engine() -> None:
    class Broken(SteppedToy):
        def step(self) -> list[Output]:
            raise AssertionError("a block has two owners")

    async def test(engine: RemoteEngine) -> None:
        with pytest.raises(EngineUnavailable, match="died"):
            await collect(engine, "a", [1], params(1))
        assert engine.state == "dead"

    run(test, LocalEngine(Broken()))


def test_a_write_that_finds_nobody_is_the_death_of_the_engine() -> None:
    async def test(engine: RemoteEngine) -> None:
        waiting = asyncio.create_task(collect(engine, "a", [1], params(60)))
        await until(lambda: _is_running(engine))
        broken = asyncio.StreamReader()
        broken.set_exception(BrokenPipeError())  # as asyncio tells the reader what a write has met
        await engine._listen(broken)
        with pytest.raises(EngineUnavailable):
            await waiting
        assert engine.state == "dead"

    run(test, LocalEngine(SteppedToy(pause=0.01)))


def test_a_process_of_its_own_answers_dies_and_starts_again() -> None:
    engine = in_process()

    async def test(_: RemoteEngine) -> None:
        assert engine.pid not in (None, os.getpid())
        assert len(await collect(engine, "a", [1], params(3))) == 3
        waiting = [asyncio.create_task(collect(engine, str(i), [1], params(60))) for i in range(8)]
        await asyncio.sleep(0.02)
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        start = time.monotonic()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(error) for error in found} == {EngineUnavailable}
        assert time.monotonic() - start < 5
        await engine.ended()
        assert (engine.state, engine.busy) == ("dead", False)
        with pytest.raises(EngineUnavailable, match="dead"):
            await engine.stats()
        await engine.start()
        assert len(await collect(engine, "a", [1], params(3))) == 3
        with pytest.raises(EngineUnavailable):
            await collect(engine, "b", [POISON], params(1))

    run(test, engine)


def test_a_launch_that_cannot_be_is_the_users_error() -> None:
    async def launch() -> None:
        engine = in_process("nothing")
        with pytest.raises(UserError, match=r"^nothing: there is no such model; take toy$"):
            await engine.start()
        await engine.stop()

    asyncio.run(launch())


def test_a_death_while_loading_is_no_hang() -> None:
    async def launch() -> None:
        engine = ProcessEngine("toy", EngineConfig(), command=(sys.executable, "-c", "pass"))
        with pytest.raises(EngineUnavailable):
            await asyncio.wait_for(engine.start(), 30)
        await engine.stop()

    asyncio.run(launch())


def test_the_engine_ends_with_the_api() -> None:
    """However the API's process ends: the engine's process must not outlive it."""
    program = """
import asyncio, os, sys
from intaglio.engine.interface import EngineConfig
from intaglio.serving.remote import ProcessEngine
async def whole():
    engine = ProcessEngine("toy", EngineConfig(), command=sys.argv[1:])
    await engine.start()
    print(engine.pid, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(whole())
"""

    async def whole() -> None:
        api = await asyncio.create_subprocess_exec(sys.executable, "-c", program, *TOY, stdout=asyncio.subprocess.PIPE)
        assert api.stdout is not None
        pid = int(await api.stdout.readline())
        while os.path.exists(f"/proc/{pid}") and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(whole(), 60))
