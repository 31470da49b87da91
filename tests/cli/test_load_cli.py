"""`intaglio load`, against the API with a scripted engine behind a real socket."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from api_server import plain_tokenizer, socket_server
from intaglio.serving.app import create_app
from intaglio.serving.service import Service
from running import Run
from scripted_engine import ScriptedEngine


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(plain_tokenizer(), pause=0.001)


@pytest.fixture(scope="module")
def url(engine: ScriptedEngine) -> Iterator[str]:
    service = Service(engine, engine.tokenizer, ("toy",))
    with socket_server(create_app(service, api_keys=("key",))) as address:
        yield address


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """The toy's tokenizer knows no word as one token."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Hello"}\n{"messages": [{"role": "user", "content": "Hi"}]}\n')
    return file


def test_each_level_has_its_figures(
    run: Run, url: str, engine: ScriptedEngine, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTAGLIO_API_KEY", "key")
    engine.asked.clear()
    options = ["--concurrency", "1,4", "--requests", 8, "--output-tokens", 6, "--prompts", prompts, "--json"]
    ran = run("load", url, *options)
    assert ran.status == 0
    first, second = json.loads(ran.out)
    assert (first["concurrency"], second["concurrency"]) == (1, 4)
    for level in (first, second):
        assert (level["url"], level["model"], level["requests"], level["failed"]) == (url, "toy", 8, 0)
        assert level["output_tokens"] == level["wanted_output_tokens"] == 48
        assert level["ttft_s"]["count"] == 8
        assert 0 < level["ttft_s"]["p50"] < level["latency_s"]["p50"]
    assert first["mean_concurrency"] < 1.01 < 2 < second["mean_concurrency"] < 4.01
    assert all(params.ignore_eos for _, params in engine.asked)  # case 45
    assert len(engine.asked) == 1 + 8 + 8  # a warm-up


def test_without_ignore_eos_shorter_answers_are_told(run: Run, url: str, prompts: Path) -> None:
    options = ["--api-key", "key", "--no-ignore-eos", "--rate", 200, "--requests", 5, "--output-tokens", 60]
    ran = run("load", f"{url}/v1", *options, "--prompts", prompts, "--json")
    (level,) = json.loads(ran.out)
    assert (level["rate"], level["wanted_output_tokens"]) == (200, 300)
    assert 0 < level["output_tokens"] < 300


def test_each_server_has_a_table(run: Run, url: str, prompts: Path) -> None:
    options = ["--api-key", "key", "--concurrency", 2, "--requests", 2, "--output-tokens", 2, "--prompts", prompts]
    ran = run("load", url, url.replace("127.0.0.1", "localhost") + "/v1/chat/completions", *options)
    assert ran.status == 0
    assert len(re.findall(r"2 at once +│ +[\d.]+ +│ 4/4 +│ 0/2 ", ran.out)) == 2
    assert "localhost" in ran.out
    assert "Times in ms" in ran.out


def test_failures_are_counted_and_told_by_the_status(
    run: Run, url: str, engine: ScriptedEngine, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "pool_tokens", 1)
    options = ["--api-key", "key", "--concurrency", 1, "--requests", 2, "--prompts", prompts, "--json"]
    ran = run("load", url, *options)
    assert ran.status == 1
    (level,) = json.loads(ran.out)
    assert (level["failed"], level["errors"]) == (2, {"HTTP 400": 2})
    assert level["ttft_s"]["p50"] is None


def test_mistakes_are_one_line(run: Run, url: str, tmp_path: Path) -> None:
    assert "'1,x' is no list of numbers" in run("load", url, "--concurrency", "1,x").refusal
    assert "'0' is no list of numbers" in run("load", url, "--rate", "0").refusal
    assert "answers with 401" in run("load", url).refusal
    assert "128 tokens only" in run("load", url, "--shared-prefix", 200).refusal
    empty = tmp_path / "rows.jsonl"
    empty.write_text("\n")
    assert "no prompts" in run("load", url, "--prompts", empty).refusal
    empty.write_text('{"prompt": "a"}\n[]\n')
    assert f"{empty}:2: no JSON object" in run("load", url, "--prompts", empty).refusal
