"""`/v1/embeddings`, with an engine whose vectors are `[number of tokens, first token, 0.1]`."""

import base64
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from api_server import plain_tokenizer, served
from scripted_engine import ScriptedEngine

URL = "/v1/embeddings"


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served(ScriptedEngine(plain_tokenizer(), max_model_len=8)) as client:
        yield client


@pytest.mark.parametrize("given", ["ab", ["!", "!!"], [7, 8, 9], [[7], [8, 9]]])
def test_texts_and_token_ids(client: TestClient, given: Any) -> None:
    # case 38: one and several
    several = given if isinstance(given, list) and not isinstance(given[0], int) else [given]
    prompts = [plain_tokenizer().encode(one) if isinstance(one, str) else one for one in several]
    answer = client.post(URL, json={"input": given, "model": "toy"}).json()
    assert (answer["object"], answer["data"][0]["object"]) == ("list", "embedding")
    assert [row["embedding"] for row in answer["data"]] == [[len(ids), ids[0], 0.1] for ids in prompts]
    assert [row["index"] for row in answer["data"]] == list(range(len(prompts)))
    tokens = sum(map(len, prompts))
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_base64_is_little_endian_float32(client: TestClient) -> None:
    # case 38
    answer = client.post(URL, json={"input": [7, 8], "encoding_format": "base64"}).json()
    raw = base64.b64decode(answer["data"][0]["embedding"])
    assert struct.unpack("<3f", raw) == pytest.approx((2.0, 7.0, 0.1))


def test_a_text_of_the_whole_context_fits(client: TestClient) -> None:
    assert client.post(URL, json={"input": [5] * 8}).status_code == 200
    assert client.post(URL, json={"input": [5] * 9, "truncate_prompt_tokens": -1}).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": [5] * 9}, "input"),
        ({"input": ["x"] * 2000}, "input"),
        ({"input": [10**6]}, "input"),
        ({"input": "x", "dimensions": 2}, "dimensions"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ({}, "input"),
    ],
)
def test_what_makes_no_sense_is_refused(client: TestClient, fields: dict[str, Any], param: str) -> None:
    answer = client.post(URL, json=fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
