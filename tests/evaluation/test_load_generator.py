"""The load test's client: what it sends, what it takes for content, and what it makes of failures."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httpx2
import pytest

from intaglio.errors import UserError
from intaglio.evaluation.latency import Sample
from intaglio.evaluation.load import Target, closed_loop, name_model, open_loop, random_prompts, send

USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}


def chunk(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": None}


class Events(httpx2.AsyncByteStream):
    """An event stream with pauses of a hundredth of a second, cut into pieces anywhere."""

    def __init__(self, *events: Any) -> None:
        self.events = events

    async def __aiter__(self) -> Any:
        for event in self.events:
            data = event if isinstance(event, str) else json.dumps(event)
            whole = f"data: {data}\n\n".encode()
            await asyncio.sleep(0.01)
            yield whole[:7]
            yield whole[7:]


def ask(target: Target, answer: Callable[[httpx2.Request], httpx2.Response], **more: Any) -> Sample:
    """One request to a server that answers so."""

    async def test() -> Sample:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), base_url=target.url) as client:
            return await send(client, target, more.get("prompt", "hi"), 16)

    return asyncio.run(test())


def streamed(*events: Any) -> Callable[[httpx2.Request], httpx2.Response]:
    return lambda request: httpx2.Response(200, stream=Events(*events))


def test_the_first_token_is_the_first_with_content() -> None:  # case 41
    events = [chunk(role="assistant", content=""), chunk(reasoning="hm"), chunk(content="a"), USAGE, "[DONE]"]
    sample = ask(Target("http://x"), streamed(*events))
    assert sample.ttft is not None
    assert sample.latency is not None
    assert len(sample.content) == 2
    assert 0.02 <= sample.ttft < sample.latency
    assert sample.end > sample.start + sample.latency  # the usage came later
    assert (sample.prompt_tokens, sample.output_tokens, sample.error) == (3, 2, "")


def test_a_call_of_a_function_is_content() -> None:
    call = [{"index": 0, "function": {"name": "f", "arguments": ""}}]
    assert len(ask(Target("http://x"), streamed(chunk(tool_calls=call), USAGE)).content) == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda request: httpx2.Response(429), "HTTP 429"),
        (streamed(chunk(content="a")), "no usage in the stream"),
        (streamed(chunk(content="a"), {"error": {"message": "dead"}}, USAGE), "an error in the stream"),
        (streamed("{"), "JSONDecodeError"),
    ],
)
def test_what_fails_is_told(answer: Callable[[httpx2.Request], httpx2.Response], error: str) -> None:
    assert ask(Target("http://x"), answer).error == error


def test_a_server_that_is_not_there_is_told() -> None:
    async def test() -> Sample:
        target = Target("127.0.0.1:9")
        async with target.client() as client:
            with pytest.raises(UserError, match="no answer: ConnectError"):
                await name_model(client, target)
            return await send(client, target, "hi", 1)

    assert asyncio.run(test()).error == "ConnectError"


def test_full_length_is_asked_for_and_the_key_is_sent() -> None:  # case 45
    asked = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append((request.url.path, json.loads(request.content)))
        return httpx2.Response(200, stream=Events(USAGE))

    ask(Target("http://x/v1", "m", fields={"ignore_eos": True}), answer)
    ask(Target("http://x/v1/completions", "m", "completions", fields={"ignore_eos": True}), answer, prompt=[1, 2])
    (chat_path, chat), (path, text) = asked
    assert (chat_path, path) == ("/v1/chat/completions", "/v1/completions")
    assert chat["messages"] == [{"role": "user", "content": "hi"}]
    assert text["prompt"] == [1, 2]
    for body in (chat, text):
        assert (body["ignore_eos"], body["max_tokens"], body["model"]) == (True, 16, "m")
        assert body["stream_options"] == {"include_usage": True}
    assert Target("http://x", api_key="k").client().headers["Authorization"] == "Bearer k"


def words(request: httpx2.Request) -> httpx2.Response:
    """A tokenizer to whom every word of up to four letters is one token."""
    word = json.loads(request.content)["prompt"]
    return httpx2.Response(200, json={"tokens": [len(word)] * (1 if len(word) < 6 else 2)})


def test_prompts_have_the_length_asked_for_and_share_only_the_prefix() -> None:
    async def test(endpoint: Any, fresh: str) -> list[Any]:
        target = Target("http://x", "m", endpoint)
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(words), base_url="http://x") as client:
            return await random_prompts(client, target, 20, 30, shared=12, fresh=fresh)

    ids = asyncio.run(test("completions", "a"))
    assert {len(prompt) for prompt in ids} == {30}
    assert all(isinstance(token, int) for prompt in ids for token in prompt)
    texts = asyncio.run(test("chat", "a"))
    heads = {" ".join(text.split()[:12]) for text in texts}
    assert len(heads) == 1
    assert {len(text.split()) for text in texts} == {30}
    assert len(set(texts)) == 20
    others = asyncio.run(test("chat", "b"))
    assert {" ".join(text.split()[:12]) for text in others} == heads
    assert not set(others) & set(texts)


def test_a_server_that_does_not_tokenise_is_the_users_to_know() -> None:
    async def test() -> None:
        transport = httpx2.MockTransport(lambda request: httpx2.Response(404))
        async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
            await random_prompts(client, Target("http://x", "m"), 1, 5)

    with pytest.raises(UserError, match="answers with 404"):
        asyncio.run(test())


def test_a_closed_loop_keeps_so_many_running() -> None:
    running, most = 0, 0

    async def sender(prompt: Any, due: float | None) -> Sample:
        nonlocal running, most
        assert due is None
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.002)
        running -= 1
        return Sample(0.0, int(prompt))

    samples = asyncio.run(closed_loop(sender, [str(i) for i in range(20)], 3))
    assert most == 3
    assert sorted(sample.wanted_tokens for sample in samples) == list(range(20))


def test_an_open_loop_waits_for_nobody_and_counts_from_when_a_request_was_due() -> None:
    starts: list[float] = []

    async def sender(prompt: Any, due: float | None) -> Sample:
        assert due is not None
        starts.append(due)
        await asyncio.sleep(0.05)
        return Sample(due, 1)

    begin = time.perf_counter()
    samples: Coroutine[Any, Any, list[Sample]] = open_loop(sender, ["x"] * 200, 2000.0)
    assert len(asyncio.run(samples)) == 200
    assert starts == sorted(starts)
    assert 0.05 < starts[-1] - begin < 0.2  # 200 at 2,000 a second; one after the other it would be 10 seconds
