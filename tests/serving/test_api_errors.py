"""What the API refuses, how, and what it never says."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from api_server import events, plain_tokenizer, qwen_tokenizer, served
from intaglio.errors import UserError
from intaglio.serving.limits import Limits
from intaglio.serving.protocol.chat import ChatBody
from intaglio.serving.protocol.completions import CompletionBody
from scripted_engine import ScriptedEngine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}
JSON = {"content-type": "application/json"}
SECRET = "zq7secret"


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(plain_tokenizer(), max_model_len=32)


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[TestClient]:
    with served(engine) as client:
        yield client


def check(answer: Any, status: int, kind: str = "invalid_request_error") -> dict[str, Any]:
    """The error object, which looks as OpenAI's does."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    (error,) = answer.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == kind
    assert error["message"]
    return dict(error)


@pytest.mark.parametrize(
    "body",
    [
        *(b"{", b"", b"[]", b"null", b"3", b'"x"', b"\xff", b'{"messages": NaN}', b'{"a":1}x'),  # case 26
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',  # case 27
        b'{"messages": [{"role": "user", "content": "\\ud800"}], "stream": true}',
        b'{"messages": []}',  # case 25
        b'{"messages": null}',
        b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
        b'{"messages": ' + b"[" * 100_000,
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
        b'{"messages": [{"role": "user", "content": "x"}], "seed": 1' + b"0" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "x"}], "n": 1000000}',  # case 34
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_malformed_bodies(client: TestClient, engine: ScriptedEngine, path: str, body: bytes) -> None:
    check(client.post(path, content=body, headers=JSON), 400)
    assert engine.asked == []


def test_the_field_is_named(client: TestClient) -> None:
    # cases 25 and 34
    assert check(client.post(CHAT, json={"messages": []}), 400)["param"] == "messages"
    assert check(client.post(CHAT, json={**HI, "n": 10**6}), 400)["param"] == "n"
    assert check(client.post(COMPLETIONS, json={"prompt": ["x"] * 2000}), 400)["param"] == "prompt"
    assert check(client.post(CHAT, json={**HI, "stop": ["x"] * 500_000}), 400)["param"] == "stop"


@pytest.mark.parametrize("prompt", [[{}] * 1000, [[{}] * 1000] * 1000, ["x"] * 1000 + [{}]])
def test_a_million_mistakes_take_no_memory(prompt: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        CompletionBody.model_validate({"prompt": prompt})
    assert caught.value.error_count() < 10
    bodies: list[dict[str, Any]] = [{"messages": [{}] * 1000}, {**HI, "logit_bias": {f"x{i}": 1 for i in range(2000)}}]
    for body in bodies:
        with pytest.raises(ValidationError) as caught:
            ChatBody.model_validate(body)
        assert caught.value.error_count() < 10


@pytest.mark.parametrize(
    "shape",
    [
        '"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 1e999}}}',
        '"structured_outputs": {"json": {"const": 1e999}}',
        '"structured_outputs": {"json": "{\\"const\\": NaN}"}',
        '"structured_outputs": {"json": "{"}',
        '"structured_outputs": {"regex": ""}',
        '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"const": 1e999}}}],'
        '"tool_choice": "required"',
    ],
)
def test_schemas_that_are_no_json_never_reach_the_engine(shape: str) -> None:
    engine = ScriptedEngine(qwen_tokenizer(), max_model_len=4096)
    with served(engine) as client:
        body = f'{{"messages": [{{"role": "user", "content": "x"}}], {shape}}}'
        check(client.post(CHAT, content=body, headers=JSON), 400)
    assert engine.asked == []


def test_what_a_compiler_quotes_is_not_said(
    client: TestClient, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*args: Any, **fields: Any) -> Any:
        raise UserError(f'at 1(8): invalid regex "{SECRET}"', where="structured.regex")

    monkeypatch.setattr(engine, "generate", refusing)
    error = check(client.post(CHAT, json={**HI, "structured_outputs": {"regex": SECRET}}), 400)
    assert error["message"] == "structured.regex: at 1(8): invalid regex"


def test_a_body_of_another_type_is_told_so(client: TestClient) -> None:
    answer = client.post(CHAT, content=json.dumps(HI), headers={"content-type": "text/plain"})
    assert "application/json" in check(answer, 400)["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context(client: TestClient, engine: ScriptedEngine, stream: bool) -> None:
    # case 06: refused before the stream, with both numbers, and the next request is answered
    error = check(client.post(COMPLETIONS, json={"prompt": [65] * 40, "stream": stream}), 400)
    assert "40" in error["message"]
    assert "32" in error["message"]
    assert error["code"] == "context_length_exceeded"
    error = check(client.post(COMPLETIONS, json={"prompt": [65] * 20, "max_tokens": 13, "stream": stream}), 400)
    assert all(number in error["message"] for number in ("20", "13", "32"))
    assert client.post(COMPLETIONS, json={"prompt": [65] * 20, "max_tokens": 12}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", [[65] * 25, [[65], [65] * 25]])
def test_a_prompt_beyond_the_cache(client: TestClient, engine: ScriptedEngine, prompt: Any, stream: bool) -> None:
    # case 07: what the engine refuses is refused before the stream too
    engine.pool_tokens = 20
    error = check(client.post(COMPLETIONS, json={"prompt": prompt, "stream": stream, "max_tokens": 2}), 400)
    assert "25" in error["message"]
    assert "20" in error["message"]
    assert engine.running == set()


def test_unknown_models_paths_and_methods(client: TestClient) -> None:
    error = check(client.post(CHAT, json={**HI, "model": SECRET}), 404, "not_found_error")
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    check(client.get("/v1/models/other"), 404, "not_found_error")
    check(client.get("/v1/engines"), 404, "not_found_error")
    check(client.get("/v1/models/"), 404, "not_found_error")
    answer = client.get(CHAT)
    check(answer, 405)
    assert answer.headers["allow"] == "POST"
    check(client.put("/health"), 405)


def test_both_names_are_known(client: TestClient) -> None:
    for name in ("toy", "alias"):
        assert client.post(CHAT, json={**HI, "model": name}).json()["model"] == name


def test_nothing_of_the_request_is_said_again(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bodies: list[dict[str, Any]] = [
        {"messages": SECRET},
        {"messages": [{"role": SECRET, "content": "x"}]},
        {"messages": [{"role": "user", "content": {SECRET: 1}}]},
        {**HI, "temperature": SECRET},
        {**HI, "tool_choice": SECRET},
        {**HI, "response_format": {"type": SECRET}},
        {**HI, "model": SECRET},
        {**HI, "logit_bias": {SECRET: 1}},
        {**HI, "chat_template": SECRET},
        {"messages": [{"role": "user", "content": SECRET * 10}]},
    ]
    for body in bodies:
        answer = client.post(CHAT, json=body)
        assert answer.status_code in (400, 404)
        assert SECRET not in answer.text
    client.post(CHAT, content=f'{{"{SECRET}', headers=JSON)
    client.post(COMPLETIONS, json={"prompt": SECRET, "max_tokens": 1})
    assert SECRET not in caplog.text


def test_every_request_is_in_the_log(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    answer = client.post(COMPLETIONS, json={"prompt": "hi", "max_tokens": 1})
    (line,) = [record.getMessage() for record in caplog.records if record.name == "intaglio.serving.observe"]
    assert line.startswith(f"{answer.headers['x-request-id']} POST '/v1/completions' 200 in ")


def test_prompts_are_in_the_log_if_asked(engine: ScriptedEngine, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with served(engine, log_prompts=True) as client:
        client.post(COMPLETIONS, json={"prompt": SECRET, "max_tokens": 1})
    assert SECRET in caplog.text


@pytest.mark.parametrize("state", ["loading", "draining", "dead"])
def test_without_an_engine(client: TestClient, engine: ScriptedEngine, state: Any) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    engine.state = state
    answer = client.get("/health")
    assert (answer.status_code, answer.json()) == (503, {"status": state})
    answers = [client.post(CHAT, json=HI), client.post(COMPLETIONS, json={"prompt": "x"}), client.get("/v1/models")]
    for refused in [*answers, client.post("/v1/embeddings", json={"input": "x"})]:
        assert state in check(refused, 503, "server_error")["message"]
        assert refused.headers["retry-after"]


def test_an_engine_that_dies_on_the_way(client: TestClient, engine: ScriptedEngine) -> None:
    engine.breaks_after = 2
    check(client.post(CHAT, json=HI), 503, "server_error")
    engine.state = "ready"
    *chunks, last = events(client.post(CHAT, json={**HI, "stream": True}).text)
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == ["H", "e"]
    assert last["error"]["type"] == "server_error"


def test_a_mistake_of_ours(
    client: TestClient, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*args: Any, **fields: Any) -> Any:
        raise ZeroDivisionError(SECRET)

    monkeypatch.setattr(engine, "generate", broken)
    error = check(client.post(CHAT, json=HI), 500, "server_error")
    assert SECRET not in error["message"]
    assert "ZeroDivisionError" in caplog.text
    assert SECRET not in caplog.text


def test_a_full_queue(engine: ScriptedEngine) -> None:
    with served(engine, limits=Limits(sequences=4, retry_after_s=7)) as client:
        service = client.app.state.service  # type: ignore[attr-defined]
        with service.admission.admit(3):
            answer = client.post(CHAT, json={**HI, "n": 2})
            assert check(answer, 429, "rate_limit_error")["code"] == "queue_full"
            assert answer.headers["retry-after"] == "7"
            assert client.post(CHAT, json=HI).status_code == 200
        assert client.post(CHAT, json={**HI, "n": 2}).status_code == 200
        check(client.post(CHAT, json={**HI, "n": 5}), 400)
        assert service.admission.admitted == 0


def test_room_is_given_back_whatever_happens(client: TestClient, engine: ScriptedEngine) -> None:
    admission = client.app.state.service.admission  # type: ignore[attr-defined]
    for breaks in (None, 0, 1):
        engine.breaks_after = breaks
        for stream in (False, True):
            engine.state = "ready"
            client.post(CHAT, json={**HI, "stream": stream})
            assert (admission.admitted, engine.running) == (0, set())


def test_long_bodies(engine: ScriptedEngine) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    with served(engine, limits=Limits(body_bytes=1000)) as client:
        check(client.post(CHAT, json={"messages": [{"role": "user", "content": "x" * 1000}]}), 413)
        check(client.post(CHAT, content=pieces(), headers=JSON), 413)
        for length in ("9" * 30, "-1", "²"):
            headers = {name.encode(): value.encode() for name, value in (*JSON.items(), ("content-length", length))}
            answer = client.post(CHAT, content=b"{}", headers=headers)
            assert answer.status_code in (400, 413)
        assert client.post(CHAT, json=HI).status_code == 200
