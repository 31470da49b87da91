"""`intaglio load`, against the API with a scripted engine behind a real socket."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    found = json.loads(ran.out)
    assert found["format"] == "intaglio-load/1"
    first, second = found["runs"]
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
    ran = run("load", f"{url}/v1", *options, "--arrivals", "bursty:0.5", "--prompts", prompts, "--json")
    (level,) = json.loads(ran.out)["runs"]
    assert (level["rate"], level["arrivals"], level["wanted_output_tokens"]) == (200, "bursty:0.5", 300)
    assert 0 < level["output_tokens"] < 300
    assert any("where 300 were asked for" in text for text in level["warnings"])


def test_servers_have_tables_and_a_folder(run: Run, url: str, prompts: Path, tmp_path: Path) -> None:
    options = ["--api-key", "key", "--concurrency", 2, "--requests", 2, "--output-tokens", 2, "--prompts", prompts]
    other = "other=" + url.replace("127.0.0.1", "localhost") + "/v1/chat/completions"
    ran = run("load", url, other, *options, "--slo", "ttft=60s", "--out", tmp_path / "out")
    assert ran.status == 0
    assert len(re.findall(r"2 at once +[\d.]+ +4 +0/2 +\d.*100%", ran.out)) == 2
    assert re.search(r"beside 127.0.0.1:\d+\s", ran.out)
    assert re.search(r"2 at once +other +[\d.]+×", ran.out)
    assert "Times in ms" in ran.out
    assert "other: concurrency 2 measured" in ran.err
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "load.json",
        "levels.csv",
        "requests.csv",
        "load.html",
    }


def test_conversations_are_held(run: Run, url: str, engine: ScriptedEngine, tmp_path: Path) -> None:
    file = tmp_path / "chats.jsonl"
    turns = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
    file.write_text(json.dumps({"messages": turns}))
    options = ["--api-key", "key", "--concurrency", 1, "--requests", 2, "--output-tokens", 3, "--warmup", 0]
    ran = run("load", url, *options, "--prompts", file, "--multi-turn", "--json")
    (level,) = json.loads(ran.out)["runs"]
    assert (level["requests"], level["later_turn_ttft_s"]["count"]) == (4, 2)
    shown = run("load", url, *options, "--prompts", file, "--multi-turn").out
    assert re.search(r"TTFT \S+ in first turns, \S+ in\s+later\s+ones", shown)


def test_a_search_is_told(run: Run, url: str, prompts: Path) -> None:
    options = ["--api-key", "key", "--find", "concurrency", "--between", "1,2", "--requests", 2, "--output-tokens", 2]
    ran = run("load", url, *options, "--slo", "latency=60s", "--prompts", prompts)
    assert ran.status == 0
    assert "concurrency 2 keeps the targets" in ran.err
    assert "2 at once *" in ran.out


def test_failures_are_counted_and_told_by_the_status(
    run: Run, url: str, engine: ScriptedEngine, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "pool_tokens", 1)
    options = ["--api-key", "key", "--concurrency", 1, "--requests", 2, "--prompts", prompts]
    ran = run("load", url, *options, "--json")
    assert ran.status == 1
    (level,) = json.loads(ran.out)["runs"]
    assert (level["failed"], level["errors"]) == (2, {"HTTP 400": 2})
    assert level["ttft_s"]["p50"] is None
    assert "2 × HTTP 400: " in run("load", url, *options).out


def test_mistakes_are_one_line(run: Run, url: str, tmp_path: Path) -> None:
    assert "'1,x' is no list of numbers" in run("load", url, "--concurrency", "1,x").refusal
    assert "'0' is no list of numbers" in run("load", url, "--rate", "0").refusal
    assert "answers with 401" in run("load", url).refusal
    assert "128 tokens only" in run("load", url, "--shared-prefix", 200).refusal
    assert "'5,2' is no range" in run("load", url, "--find", "rate", "--between", "5,2").refusal
    assert "no JSON object" in run("load", url, "--body", "[1]").refusal
    assert "two servers have one name" in run("load", url, url).refusal
    assert "is no target" in run("load", url, "--slo", "ttft=3").refusal
    assert "a search needs targets" in run("load", url, "--find", "rate", "--api-key", "key").refusal
    empty = tmp_path / "rows.jsonl"
    empty.write_text("\n")
    assert "no prompts" in run("load", url, "--prompts", empty).refusal
    empty.write_text('{"prompt": "a"}\n{"a": 1}\n')
    assert f"{empty}:2: no `prompt`" in run("load", url, "--prompts", empty).refusal
    arguments = ["--with", "evalscope", "--python", tmp_path / "python"]
    refusal = run("load", url, *arguments).refusal
    assert "evalscope is not installed" in refusal
    assert "make eval-env" in refusal


def test_who_interrupts_it_keeps_what_was_measured(
    run: Run, url: str, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from intaglio.evaluation.load.run import Session

    measure, levels = Session.measure, iter((1, 2))

    async def measured(session: Session, level: Any) -> Any:
        if next(levels) == 2:
            raise KeyboardInterrupt
        return await measure(session, level)

    monkeypatch.setattr(Session, "measure", measured)
    options = ["--api-key", "key", "--concurrency", "1,4", "--requests", 2, "--output-tokens", 2, "--prompts", prompts]
    ran = run("load", url, *options)
    assert "interrupted" in ran.err
    assert "1 at once" in ran.out
    assert "4 at once" not in ran.out
