"""One request of a load test: what it takes for content, and what it makes of failures; times are exact."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from api_server import plain_tokenizer
from intaglio.evaluation.load.latency import Sample
from intaglio.evaluation.load.sending import send
from intaglio.evaluation.load.target import Target
from scripted_stream import Script, ScriptedTransport, chunk, usage
from virtual_time import run_virtual

DONE = (0.0, "[DONE]")


def ask(script: Script, due: float | None = None, **more: Any) -> Sample:
    """One request of 16 tokens at most."""

    async def test() -> Sample:
        target = Target("x", "m", transport=ScriptedTransport(script), **more)
        async with target.client() as client:
            return await send(client, target, "hi", 16, due)

    return run_virtual(test())


def streamed(*events: tuple[float, Any]) -> Script:
    return Script(events=lambda body: list(events))


def test_the_first_token_is_the_first_with_content() -> None:
    role = chunk(role="assistant", content="")
    events = [(0.25, role), (0.25, chunk(content="a")), (0.5, chunk("stop", content="")), (1.0, usage(3, 2)), DONE]
    sample = ask(streamed(*events))
    assert (sample.ttft, sample.latency, sample.end) == (0.5, 1.0, 2.0)  # the usage came later
    assert (sample.prompt_tokens, sample.output_tokens, sample.error, sample.text) == (3, 2, "", "a")


def test_reasoning_is_content_and_no_part_of_the_text() -> None:  # case 41
    for name in ("reasoning", "reasoning_content"):
        events = [
            (0.5, chunk(**{name: "hm"})),
            (0.5, chunk(content="a")),
            (0.0, chunk("stop")),
            (0.0, usage(1, 2)),
            DONE,
        ]
        sample = ask(streamed(*events))
        assert (sample.ttft, sample.gaps, sample.text) == (0.5, [0.5], "a")


def test_a_call_of_a_function_is_content() -> None:
    call = [{"index": 0, "function": {"name": "f", "arguments": ""}}]
    assert ask(streamed((1.0, chunk("tool_calls", tool_calls=call)), (0.0, usage(1, 4)), DONE)).ttft == 1.0


def test_pieces_are_events_however_the_network_cuts_them() -> None:
    class Cut(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in (
                b": ping\r\n\r\nda",
                b'ta: {"choices": [{"text": "\xc3',
                b'\xa9", "finish_reason": "stop"}]}\n',
            ):
                yield piece
            yield b'\ndata: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}\n\ndata: [DONE]\n\n'

    class Transport(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(200, stream=Cut())

    async def test() -> Sample:
        target = Target("x", "m", "completions", transport=Transport())
        async with target.client() as client:
            return await send(client, target, [1, 2], 1)

    sample = run_virtual(test())
    assert (sample.text, sample.output_tokens, sample.error) == ("é", 1, "")


@pytest.mark.parametrize(
    ("script", "error", "detail"),
    [
        (Script(refusals=[(503, {})]), "HTTP 503", "not now"),
        (Script(refusals=[(429, {"Retry-After": "1"})]), "HTTP 429", "not now"),
        (streamed((0.0, chunk(content="a"))), "broken stream", "without [DONE]"),
        (streamed((0.0, "{")), "broken stream", "JSONDecodeError"),
        (streamed((0.0, [])), "broken stream", "'list'"),
        (
            streamed((0.0, chunk(content="a")), (0.0, {"error": {"message": "dead"}}), DONE),
            "an error in the stream",
            "dead",
        ),
        (streamed((0.0, {"object": "error", "message": "dead"}), DONE), "an error in the stream", "dead"),
        (streamed((0.0, chunk("stop")), DONE), "empty answer", ""),
        (streamed((0.0, chunk("stop")), (0.0, usage(3, 0)), DONE), "empty answer", ""),
    ],
)
def test_what_fails_is_told(script: Script, error: str, detail: str) -> None:
    sample = ask(script)
    assert sample.error == error
    assert detail in sample.detail


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (httpx2.ConnectError("refused"), "cannot connect"),
        (httpx2.ConnectTimeout("slow"), "timeout"),
        (httpx2.RemoteProtocolError("left"), "connection lost"),
    ],
)
def test_a_server_that_is_not_there_is_told(raised: Exception, error: str) -> None:
    class Transport(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            raise raised

    async def test() -> Sample:
        target = Target("x", "m", transport=Transport())
        async with target.client() as client:
            return await send(client, target, "hi", 1)

    assert run_virtual(test()).error == error


def test_a_request_has_so_much_time() -> None:
    sample = ask(streamed((1.0, chunk(content="a")), (5.0, chunk("stop", content="b")), DONE), timeout=2.5)
    assert (sample.error, sample.end, sample.ttft) == ("timeout", 2.5, 1.0)


def test_whoever_is_turned_away_comes_again_when_told_to() -> None:
    script = Script(refusals=[(429, {"Retry-After": "2"}), (429, {})])
    sample = ask(script, retries=2)
    assert (sample.error, sample.retries) == ("", 2)
    assert sample.ttft == 2 + 1 + 0.125
    assert len(script.asked) == 3
    script = Script(refusals=[(429, {"Retry-After": "2"})] * 3)
    assert (ask(script, retries=2).error, len(script.asked)) == ("HTTP 429", 3)
    assert ask(Script(refusals=[(429, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})]), retries=1).ttft == 0.125
    assert ask(Script(refusals=[(429, {"Retry-After": "soon"})]), retries=1).ttft == 1.125


def test_tokens_that_the_server_does_not_count_are_counted_here() -> None:
    events = [(0.0, chunk(content="Hello")), (0.0, chunk("stop", content=" world")), DONE]
    sample = ask(streamed(*events))
    assert (sample.output_tokens, sample.counted_by) == (2, "pieces")
    tokenizer = plain_tokenizer()
    sample = ask(streamed(*events), tokenizer=tokenizer)
    assert sample.counted_by == "tokenizer"
    assert sample.output_tokens == len(tokenizer.encode("Hello world", add_special_tokens=False)) > 2


def test_what_the_server_tells_besides_is_kept() -> None:
    details = {"prompt_tokens_details": {"cached_tokens": 2}, "queue_time": 0.5}
    sample = ask(streamed((0.0, chunk("stop", content="a")), (0.0, usage(3, 1, **details)), DONE))
    assert (sample.cached_tokens, sample.queue) == (2, 0.5)
    assert ask(Script()).queue is None


def test_a_request_that_is_late_says_so() -> None:
    sample = ask(Script(), due=-1.0)
    assert (sample.lateness, sample.ttft) == (1.0, 1.125)


def test_full_length_is_asked_for_and_fields_win() -> None:  # case 45
    for endpoint, prompt in (("chat", [{"role": "user", "content": "hi"}]), ("completions", "hi")):
        script = Script()
        fields = {"ignore_eos": True, "temperature": 1}
        ask(script, endpoint=endpoint, fields=fields)
        (body,) = script.asked
        assert body["messages" if endpoint == "chat" else "prompt"] == prompt
        assert (body["ignore_eos"], body["max_tokens"], body["model"], body["temperature"]) == (True, 16, "m", 1)
        assert body["stream_options"] == {"include_usage": True}
