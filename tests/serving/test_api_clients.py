"""Real clients over a real socket: openai-python, and those who go away before the end."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest

from api_server import qwen_tokenizer, socket_server
from intaglio.serving.app import create_app
from intaglio.serving.limits import Limits
from intaglio.serving.service import Service
from scripted_engine import ScriptedEngine

KEY = "k"
TOOL: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
HI: Any = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]  # a list, as `vllm bench serve` sends it
LONG = "and so on " * 200


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(qwen_tokenizer(), max_model_len=4096)


@pytest.fixture(scope="module")
def service(engine: ScriptedEngine) -> Service:
    return Service(engine, engine.tokenizer, ("toy",), limits=Limits(sequences=100))


@pytest.fixture(scope="module")
def address(service: Service) -> Iterator[str]:
    with socket_server(create_app(service, api_keys=[KEY])) as address:
        yield address


@pytest.fixture
def client(address: str, engine: ScriptedEngine) -> Iterator[openai.OpenAI]:
    engine.script, engine.pause = "Hello there!<|im_end|>", 0.0
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def until(true: Callable[[], bool]) -> None:
    """Waits for what must come soon."""
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_openai_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="toy",
        messages=HI,
        logprobs=True,
        top_logprobs=2,
        n=2,
        extra_body={"top_k": 3},
    )
    assert [choice.message.content for choice in answer.choices] == ["Hello there!"] * 2
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.content is not None
    assert [len(entry.top_logprobs) for entry in answer.choices[0].logprobs.content] == [2] * 7
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.id.endswith(str(answer._request_id))


def test_openai_streams(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="toy", messages=HI, stream_options={"include_usage": True}) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello there!"
    assert final.choices[0].finish_reason == "stop"
    assert final.usage is not None
    assert final.usage.completion_tokens == 7
    pieces = [chunk.choices[0].text for chunk in client.completions.create(model="toy", prompt="x", stream=True)]
    assert pieces == ["H", "e", "ll", "o", " there", "!", ""]


def test_openai_tools(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.script = 'Well.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call><|im_end|>'
    answer = client.chat.completions.create(model="toy", messages=HI, tools=[TOOL])
    assert answer.choices[0].finish_reason == "tool_calls"
    with client.chat.completions.stream(model="toy", messages=HI, tools=[TOOL]) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert streamed.content == "Well."
    for message in (answer.choices[0].message, streamed):
        assert message.tool_calls is not None
        (call,) = message.tool_calls
        assert call.type == "function"
        assert json.loads(call.function.arguments) == {"city": "Bern"}


def test_openai_embeddings_models_and_errors(client: openai.OpenAI, address: str) -> None:
    (vector,) = client.embeddings.create(model="toy", input=[5, 6]).data  # base64 by itself
    assert vector.embedding == pytest.approx([2.0, 5.0, 0.1])
    assert client.models.list().data[0].id == client.models.retrieve("toy").id == "toy"
    with pytest.raises(openai.BadRequestError, match="messages"):
        client.chat.completions.create(model="toy", messages=[])
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=HI)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0).models.list()


def test_openai_async_at_once(client: openai.OpenAI, address: str) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=KEY) as client:

            async def one() -> str:
                stream = await client.chat.completions.create(model="toy", messages=HI, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*[one() for _ in range(10)])

    assert asyncio.run(ask()) == ["Hello there!"] * 10


def test_an_error_in_a_stream_is_raised(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.breaks_after = 2
    try:
        with pytest.raises(openai.APIError, match="the engine has died"):
            list(client.chat.completions.create(model="toy", messages=HI, stream=True))
    finally:
        engine.breaks_after, engine.state = None, "ready"


@pytest.mark.parametrize("prompt", ["x", ["x", "y"]])
@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_aborts(
    client: openai.OpenAI, address: str, engine: ScriptedEngine, service: Service, stream: bool, prompt: str | list[str]
) -> None:
    # cases 19 and 20, the API's part
    engine.script, engine.pause = LONG, 0.02
    engine.aborted.clear()
    body = {"model": "toy", "prompt": prompt, "max_tokens": 1000, "ignore_eos": True, "stream": stream}
    with httpx2.Client(base_url=address, headers={"Authorization": f"Bearer {KEY}"}) as http:
        if stream:
            with http.stream("POST", "/v1/completions", json=body) as answer:
                lines = answer.iter_lines()  # leaving it would end the answer
                next(lines)
                assert engine.running
        else:
            with pytest.raises(httpx2.ReadTimeout):
                http.post("/v1/completions", json=body, timeout=0.5)
    until(lambda: not engine.running)
    assert len(engine.aborted) == (2 if isinstance(prompt, list) else 1)
    until(lambda: service.admission.admitted == 0)


def test_a_client_that_goes_away_before_the_first_token_aborts(
    client: openai.OpenAI, address: str, engine: ScriptedEngine, service: Service
) -> None:
    engine.script, engine.pause = LONG, 60.0
    engine.aborted.clear()
    body = {"model": "toy", "prompt": "x", "stream": True}
    with (
        httpx2.Client(base_url=address, headers={"Authorization": f"Bearer {KEY}"}) as http,
        pytest.raises(httpx2.ReadTimeout),
    ):
        http.post("/v1/completions", json=body, timeout=0.5)
    until(lambda: len(engine.aborted) == 1 and service.admission.admitted == 0)


def test_tokens_come_one_by_one(client: openai.OpenAI, engine: ScriptedEngine) -> None:
    engine.pause = 0.05
    came = []
    for _ in client.completions.create(model="toy", prompt="x", stream=True):
        came.append(time.monotonic())
    assert came[-1] - came[0] > 0.15
