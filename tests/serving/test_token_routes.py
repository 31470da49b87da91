"""The routes that show the tokenizer, the models and the page."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from api_server import plain_tokenizer, served
from intaglio.serving import page
from scripted_engine import ScriptedEngine


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served(ScriptedEngine(plain_tokenizer()), root="/models/toy") as client:
        yield client


def test_there_and_back(client: TestClient) -> None:
    text = "Grüße, 好!"
    answer = client.post(
        "/tokenize", json={"prompt": text, "add_special_tokens": False, "return_token_strs": True}
    ).json()
    tokenizer = plain_tokenizer()
    assert answer["tokens"] == tokenizer.encode(text)
    assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), 256)
    assert answer["token_strs"] == [tokenizer.token(i) for i in answer["tokens"]]
    assert client.post("/detokenize", json={"tokens": answer["tokens"]}).json() == {"prompt": text}
    assert client.post("/detokenize", json={"tokens": [2, 10**9]}).json() == {"prompt": "<|im_end|>"}


def test_a_conversation_is_what_chat_reads(client: TestClient) -> None:
    messages = [{"role": "user", "content": "hi"}]
    ids = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
    client.post("/v1/chat/completions", json={"messages": messages})
    engine = client.app.state.service.engine  # type: ignore[attr-defined]
    assert engine.asked[-1][0] == ids
    shorter = client.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()["tokens"]
    assert ids[: len(shorter)] == shorter
    assert len(shorter) < len(ids)


@pytest.mark.parametrize("body", [{}, {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, {"prompt": 3}])
def test_neither_and_both_are_refused(client: TestClient, body: dict[str, Any]) -> None:
    assert client.post("/tokenize", json=body).status_code == 400


def test_the_tokenizer_is_described(client: TestClient) -> None:
    info = client.get("/tokenizer_info").json()
    assert (info["eos_token"], info["pad_token"], info["bos_token"]) == ("<|im_end|>", "<|endoftext|>", None)
    assert info["chat_template"] == plain_tokenizer().chat_template
    assert info["model_max_length"] == 256


def test_models(client: TestClient) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == ["toy", "alias"]
    card = client.get("/v1/models/toy").json()
    assert card == listed["data"][0]
    assert (card["object"], card["root"], card["parent"], card["max_model_len"]) == ("model", "/models/toy", None, 256)


def test_the_page(client: TestClient) -> None:
    for path, (file, media_type) in page.files().items():
        answer = client.get(path)
        assert (answer.content, answer.headers["content-type"].split(";")[0]) == (
            file.read_bytes(),
            media_type.split(";")[0],
        )
    assert client.get("/page/__init__.py").status_code == 404
    assert client.get("/page/../service.py").status_code == 404


def test_the_document_names_bodies_and_answers(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    chat = paths["/v1/chat/completions"]["post"]
    assert chat["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/ChatBody"}
    assert set(chat["responses"]) == {"200", "4XX", "5XX"}
