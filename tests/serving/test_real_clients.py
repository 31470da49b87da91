"""Clients as they are, on `intaglio serve` with SmolLM2 as users start it: for `make prove`."""

import asyncio
import json
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from intaglio.text.chat_templates import load_template
from served_model import Served, served_model

pytestmark = [pytest.mark.prove, pytest.mark.real]

NAME = "smollm2-135m-instruct"
KEY = "a-key"
QUESTION: Any = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
CITY = {"type": "string", "enum": ["Paris", "London"]}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": CITY}, "required": ["city"]},
    },
}


@pytest.fixture(scope="module")
def server(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With a template that knows tools: the model's own does not."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "qwen.jinja").write_text(load_template("qwen"))
    options = ("--served-model-name", NAME, "--api-key", KEY, "--chat-template", str(folder / "qwen.jinja"))
    with served_model(smollm2_dir, *options, "--max-model-len", "2048", log=folder / "log") as server:
        yield server
        assert server.end() == 0
        assert "Traceback" not in server.log.read_text()


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_a_chat_of_two_turns(client: openai.OpenAI) -> None:
    messages = list(QUESTION)
    first = client.chat.completions.create(model=NAME, messages=messages, max_tokens=40, temperature=0)
    said = first.choices[0].message.content
    assert said is not None
    assert "Paris" in said
    assert first.usage is not None
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "And of Italy?"}]
    second = client.chat.completions.create(model=NAME, messages=messages, max_tokens=40, temperature=0)
    assert "Rome" in (second.choices[0].message.content or "")
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= 16  # the first turn was kept


def test_a_stream_says_what_the_whole_answer_says(client: openai.OpenAI) -> None:
    asked: Any = {"model": NAME, "messages": QUESTION, "max_tokens": 30, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].choices == []
    assert whole.usage is not None
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_many_at_once(server: Served) -> None:
    async def test() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
            asked: Any = {"model": NAME, "temperature": 0, "max_tokens": 8, "extra_body": {"ignore_eos": True}}
            prompts = [f"{n} plus {n} is" for n in range(16)]
            answers = await asyncio.gather(*(client.completions.create(prompt=p, **asked) for p in prompts))
            assert {answer.usage.completion_tokens for answer in answers if answer.usage} == {8}
            stream = await client.chat.completions.create(model=NAME, messages=QUESTION, stream=True, max_tokens=4)
            assert len([chunk async for chunk in stream]) >= 4

    asyncio.run(test())


def test_tools(client: openai.OpenAI) -> None:
    asked: Any = {"model": NAME, "messages": QUESTION, "tools": [WEATHER], "temperature": 0, "max_tokens": 60}
    forced: Any = {"type": "function", "function": {"name": "weather"}}
    answer = client.chat.completions.create(**asked, tool_choice=forced)
    (call,) = answer.choices[0].message.tool_calls or [None]
    assert call is not None
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in CITY["enum"]
    required = client.chat.completions.create(**asked, tool_choice="required")
    assert required.choices[0].finish_reason == "tool_calls"
    plain = client.chat.completions.create(**asked, tool_choice="none")
    assert plain.choices[0].message.tool_calls is None
    history = [
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
    ]
    answer = client.chat.completions.create(**{**asked, "messages": history})
    assert answer.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME, messages=QUESTION, max_tokens=10, temperature=0, logprobs=True, top_logprobs=4
    )
    assert answer.choices[0].logprobs is not None
    told = answer.choices[0].logprobs.content or []
    assert answer.usage is not None
    assert len(told) == answer.usage.completion_tokens
    for token in told:
        assert token.logprob == token.top_logprobs[0].logprob  # greedy
        assert sum(math.exp(top.logprob) for top in token.top_logprobs) <= 1 + 1e-3
    text = b"".join(bytes(token.bytes or []) for token in told).decode()
    assert text.removesuffix("<|im_end|>") == answer.choices[0].message.content


def test_json_by_a_schema(client: openai.OpenAI) -> None:
    class City(BaseModel):
        name: str
        capital: bool

    parsed = client.chat.completions.parse(
        model=NAME, messages=QUESTION, response_format=City, temperature=0, max_tokens=60
    )
    assert isinstance(parsed.choices[0].message.parsed, City)


def test_embeddings(client: openai.OpenAI) -> None:
    texts = ["A cat sat on the mat.", "A kitten lay on the rug.", "The stock market fell sharply today."]
    vectors = np.array([item.embedding for item in client.embeddings.create(model=NAME, input=texts).data])
    assert vectors.shape == (3, 576)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-3)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]


def test_completions_with_choices_and_echo(client: openai.OpenAI) -> None:
    asked: Any = {"model": NAME, "max_tokens": 5, "seed": 1, "temperature": 1}
    answer = client.completions.create(prompt=["One,", "Uno,"], n=2, echo=True, logprobs=1, **asked)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert all(choice.text.startswith(("One,", "Uno,")) for choice in answer.choices)
    again = client.completions.create(prompt=["One,", "Uno,"], n=2, echo=True, logprobs=1, **asked)
    assert [choice.text for choice in again.choices] == [choice.text for choice in answer.choices]


def test_models_and_errors(client: openai.OpenAI, server: Served) -> None:
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")
    with pytest.raises(openai.BadRequestError, match="2048"):
        client.completions.create(model=NAME, prompt=[5] * 3000)
    with pytest.raises(openai.AuthenticationError), openai.OpenAI(base_url=f"{server.url}/v1", api_key="no") as other:
        other.models.list()


def test_langchain(server: Served) -> None:
    chat = ChatOpenAI(model=NAME, base_url=f"{server.url}/v1", api_key=lambda: KEY, temperature=0, max_tokens=60)
    assert "Paris" in chat.invoke(QUESTION).text
    assert len([piece for piece in chat.stream(QUESTION) if piece.text]) > 3
    bound = chat.bind_tools([WEATHER], tool_choice="weather")
    (call,) = bound.invoke("Weather in Paris?").tool_calls
    assert call["name"] == "weather"
    found = chat.with_structured_output(
        {"title": "City", "type": "object", "properties": {"city": CITY}, "required": ["city"]},
        method="json_schema",
    ).invoke("Name a city.")
    assert found["city"] in CITY["enum"]
    vectors = OpenAIEmbeddings(
        model=NAME, openai_api_base=f"{server.url}/v1", openai_api_key=lambda: KEY, check_embedding_ctx_length=False
    )
    assert len(vectors.embed_query("hi")) == 576


def test_curl(server: Served) -> None:
    body = {"messages": QUESTION, "max_tokens": 16, "temperature": 0, "stream": True}
    command = ["curl", "-sN", f"{server.url}/v1/chat/completions", "-H", f"Authorization: Bearer {KEY}"]
    command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert said.rstrip().endswith("data: [DONE]")
    assert "Paris" in "".join(
        json.loads(line[6:])["choices"][0]["delta"].get("content", "")
        for line in said.splitlines()
        if line.startswith("data: {")
    )


def test_content_as_vllm_bench_sends_it(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    chunks = list(
        client.chat.completions.create(
            model=NAME,
            messages=messages,
            temperature=0,
            max_completion_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    )
    assert chunks[0].choices[0].delta.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 6
