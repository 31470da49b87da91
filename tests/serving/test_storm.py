"""The full-sized trials of the server, on a toy model through `intaglio serve` itself: for `make prove`."""

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx2
import psutil
import pytest

from fuzzing import fuzz
from served_model import Served, served_model
from storm import gauges, storm, until_idle

pytestmark = pytest.mark.prove

SMALL = ("--block-size", "4", "--num-blocks", "256", "--max-sequences", "32", "--threads", "1")
_MEGABYTE = 2**20


def after_storm(server: Served, requests: int, seed: int) -> int:
    """Bytes that are held when the storm is over and everything has been given back."""

    async def test() -> None:
        ended = await storm(server.url, requests, 64, seed)
        assert not [name for name in ended if name.startswith("wrong")], ended
        assert sum(ended.values()) == requests
        await until_idle(server.url)

    asyncio.run(test())
    return server.memory()


def test_two_thousand_requests_at_64_at_once(toy_dir: Path, tmp_path: Path) -> None:
    with served_model(toy_dir, *SMALL, log=tmp_path / "log") as server:
        early = after_storm(server, 1000, seed=1)
        late = after_storm(server, 1000, seed=2)
        assert late - early < 32 * _MEGABYTE
        assert httpx2.post(f"{server.url}/v1/completions", json={"prompt": "x"}, timeout=60).status_code == 200
        assert server.end() == 0
        assert "Traceback" not in server.log.read_text()


def test_a_killed_engine_is_no_hang_in_a_storm(toy_dir: Path, tmp_path: Path) -> None:
    with served_model(toy_dir, *SMALL, log=tmp_path / "log") as server:

        async def test() -> None:
            running = asyncio.create_task(storm(server.url, 600, 64, 3))
            while (await gauges(server.url))["num_requests_running"] < 16:
                await asyncio.sleep(0.01)
            (engine,) = psutil.Process(server.process.pid).children()
            engine.kill()
            async with asyncio.timeout(180):
                ended = await running
                assert any("503" in name or "error" in name for name in ended), ended
                async with httpx2.AsyncClient() as client:
                    while (await client.get(f"{server.url}/health", timeout=30)).status_code != 200:
                        await asyncio.sleep(0.1)
            await until_idle(server.url)

        asyncio.run(test())
        assert httpx2.post(f"{server.url}/v1/completions", json={"prompt": "x"}, timeout=60).status_code == 200


def test_five_thousand_requests_made_from_the_document(toy_dir: Path, tmp_path: Path) -> None:
    with served_model(toy_dir, *SMALL, log=tmp_path / "log") as server:
        assert fuzz(f"{server.url}/openapi.json", 5000) >= 5000
        assert httpx2.get(f"{server.url}/health").status_code == 200


def test_an_engine_that_cannot_be_is_one_line(toy_dir: Path) -> None:
    command = [sys.executable, "-m", "intaglio.cli.main", "serve", str(toy_dir), "--port", "0"]
    ran = subprocess.run([*command, "--max-model-len", "999999"], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1].startswith("intaglio: max_model_len: 999999 tokens are more than the model's")
