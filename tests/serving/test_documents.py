"""`/v1/chat/completions` over documents: sources in the prompt, citations in the answer, whole and streamed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from api_server import events, plain_tokenizer, served
from intaglio.retrieval.answer import Grounding
from intaglio.retrieval.prompt import NOT_FOUND
from scripted_engine import ScriptedEngine
from toy_documents import toy_searcher

FERRY = "When does the ferry to the island leave?"


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(plain_tokenizer(), script="At nine [1].<|im_end|>", max_model_len=4096)


@pytest.fixture
def client(engine: ScriptedEngine, tmp_path: Path) -> Iterator[TestClient]:
    with served(engine, grounding=Grounding(toy_searcher(tmp_path), 1000, passages=3)) as client:
        yield client


def asked(*contents: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": said} for i, said in enumerate(contents)], **more}


def prompt_of(engine: ScriptedEngine) -> str:
    """The text of the last prompt that the engine was given."""
    return engine.tokenizer.decode(engine.asked[-1][0], skip_special_tokens=False)


def test_the_answer_cites_what_the_prompt_holds(client: TestClient, engine: ScriptedEngine) -> None:
    answer = client.post("/v1/chat/completions", json=asked(FERRY)).json()
    choice = answer["choices"][0]
    assert choice["message"]["content"] == "At nine [1]."
    (citation,) = choice["citations"]
    assert {name: citation[name] for name in ("number", "file", "line", "state", "by")} == {
        "number": 1,
        "file": "boats.md",
        "line": 1,
        "state": "verified",
        "by": "model",
    }
    assert "[1] boats.md: Boats\nThe ferry to the island leaves at nine." in prompt_of(engine)
    assert answer["usage"]["prompt_tokens"] == len(engine.asked[0][0]) <= 1000


def test_a_stream_ends_with_the_citations(client: TestClient) -> None:
    answer = client.post("/v1/chat/completions", json=asked(FERRY, stream=True, n=2))
    choices = [choice for event in events(answer.text)[:-1] for choice in event["choices"]]
    for index in (0, 1):
        own = [choice for choice in choices if choice["index"] == index]
        assert [choice["finish_reason"] is not None for choice in own] == ["citations" in choice for choice in own]
        assert [citation["file"] for citation in own[-1]["citations"]] == ["boats.md"]


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_in_the_documents_is_said_without_the_model(
    client: TestClient, engine: ScriptedEngine, stream: bool
) -> None:
    answer = client.post("/v1/chat/completions", json=asked("Who painted the Mona Lisa?", stream=stream, n=2))
    if stream:
        choices = [choice for event in events(answer.text)[:-1] for choice in event["choices"]]
        told = [choice["delta"]["content"] for choice in choices]
    else:
        choices = answer.json()["choices"]
        told = [choice["message"]["content"] for choice in choices]
    assert told == [NOT_FOUND, NOT_FOUND]
    assert [(choice["finish_reason"], choice["citations"]) for choice in choices] == [("stop", [])] * 2
    assert not engine.asked


def test_the_conversation_before_stays(client: TestClient, engine: ScriptedEngine) -> None:
    client.post("/v1/chat/completions", json=asked("Is there a kennel for dogs?", "Yes.", FERRY))
    prompt = prompt_of(engine)
    assert "user\nIs there a kennel for dogs?<|im_end|>" in prompt
    assert prompt.endswith(f"Question: {FERRY}<|im_end|>\n<|im_start|>assistant\n")


def test_what_is_not_a_question_goes_through(client: TestClient, engine: ScriptedEngine) -> None:
    body = asked(FERRY, "At", continue_final_message=True, add_generation_prompt=False)
    choice = client.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert "citations" not in choice
    assert "boats.md" not in prompt_of(engine)


def test_a_prompt_without_room_is_refused(tmp_path: Path, engine: ScriptedEngine) -> None:
    with served(engine, grounding=Grounding(toy_searcher(tmp_path), 100)) as client:
        answer = client.post("/v1/chat/completions", json=asked(FERRY))
    assert answer.status_code == 400
    assert "no source fits" in answer.json()["error"]["message"]


def test_room_for_the_answer_is_kept(client: TestClient, engine: ScriptedEngine) -> None:
    client.post("/v1/chat/completions", json=asked(FERRY, max_tokens=4096 - 700))
    assert len(engine.asked[0][0]) <= 700


def test_without_documents_nothing_changes(engine: ScriptedEngine) -> None:
    with served(engine) as client:
        assert "citations" not in client.post("/v1/chat/completions", json=asked(FERRY)).json()["choices"][0]
