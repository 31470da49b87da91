"""`/v1/completions` against an engine that says what it is told."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from api_server import events, plain_tokenizer, served
from intaglio.engine.logprobs import TokenLogprob
from intaglio.serving.logprobs import LogprobWriter
from intaglio.text.tokenizer import Tokenizer, add_border_tokens
from scripted_engine import ScriptedEngine
from toy_tokenizers import byte_level, sentencepiece

URL = "/v1/completions"


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(plain_tokenizer())


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[TestClient]:
    with served(engine) as client:
        yield client


def ask(client: TestClient, prompt: Any = "hi", **fields: Any) -> Any:
    answer = client.post(URL, json={"model": "toy", "prompt": prompt, **fields})
    assert answer.status_code == 200, answer.text
    return events(answer.text) if fields.get("stream") else answer.json()


def test_prompts_are_texts_or_ids_one_or_several(client: TestClient, engine: ScriptedEngine) -> None:
    ids = engine.tokenizer.encode("hi")
    for prompt in ("hi", ids, ["hi"], [ids]):
        engine.asked.clear()
        answer = ask(client, prompt)
        assert answer["object"] == "text_completion"
        assert [choice["text"] for choice in answer["choices"]] == ["Hello there!"]
        assert [asked for asked, _ in engine.asked] == [ids]
    assert engine.asked[-1][1].max_tokens == 16


def test_indices_of_prompts_and_choices(client: TestClient, engine: ScriptedEngine) -> None:
    engine.scripts = ("a<|im_end|>", "b<|im_end|>")
    answer = ask(client, ["x", "y", "zz"], n=2)
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == list(enumerate("ababab"))
    prompt_tokens = sum(len(ids) for ids, _ in engine.asked)
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (prompt_tokens, 12)
    texts = [""] * 6
    ends = [0] * 6
    *chunks, last, _ = ask(client, ["x", "y", "zz"], n=2, stream=True, stream_options={"include_usage": True})
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        ends[choice["index"]] += choice["finish_reason"] == "stop"
    assert (texts, ends) == (list("ababab"), [1] * 6)
    assert (last["choices"], last["usage"]) == ([], answer["usage"])


def test_a_loglikelihood_request_has_an_entry_for_every_token(client: TestClient, engine: ScriptedEngine) -> None:
    # case 22: lm-eval's payload; the token that is made has its entry even if it is EOS
    engine.script = "<|im_end|>"
    prompt = engine.tokenizer.encode("\n1. x")
    payload = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    (choice,) = ask(client, [prompt], **payload)["choices"]
    logprobs = choice["logprobs"]
    assert [len(entries) for entries in logprobs.values()] == [len(prompt) + 1] * 4
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert all(entry for entry in logprobs["top_logprobs"][1:])
    assert engine.asked[-1][0] == prompt  # nothing is added to ids


def test_echoed_tokens_are_the_text(client: TestClient, engine: ScriptedEngine) -> None:
    # case 23
    for prompt in ("\n1. x", "né 好"):
        for given in (prompt, engine.tokenizer.encode(prompt)):
            (choice,) = ask(client, given, echo=True, logprobs=2, max_tokens=4)["choices"]
            tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
            assert choice["text"] == prompt + "Hello"
            assert "".join(tokens) == choice["text"]
            assert offsets == [len("".join(tokens[:place])) for place in range(len(tokens))]


def test_an_echo_shows_no_bos_that_nobody_wrote() -> None:
    backend = sentencepiece()
    add_border_tokens(backend, bos="<s>")
    tokenizer = Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"})
    engine = ScriptedEngine(tokenizer, script=" the</s>")
    with served(engine) as client:
        (choice,) = ask(client, "hi", echo=True, logprobs=0, max_tokens=1)["choices"]
    assert choice["text"].startswith("hi")
    assert choice["logprobs"]["tokens"][:2] == ["", "hi"]
    assert engine.asked[0][0][0] == tokenizer.bos_token_id


def test_a_half_character_of_the_prompt_is_not_shown_twice(client: TestClient, engine: ScriptedEngine) -> None:
    # case 01, the API's part: the character appears once it is whole, in the tokens as in the text
    tokenizer = engine.tokenizer
    whole = tokenizer.encode("aé")
    (choice,) = ask(client, whole[:-1], echo=True, logprobs=0, max_tokens=1)["choices"]
    assert choice["logprobs"]["tokens"][:-1] == ["a", ""]


def test_an_echo_in_a_stream_comes_first(client: TestClient) -> None:
    *chunks, _ = ask(client, "hi", echo=True, logprobs=1, stream=True, n=2, max_tokens=2)
    texts: dict[int, list[str]] = {0: [], 1: []}
    tokens: dict[int, list[str]] = {0: [], 1: []}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]].append(choice["text"])
        tokens[choice["index"]] += choice["logprobs"]["tokens"]
    assert texts == {0: ["hiH", "e"], 1: ["hiH", "e"]}
    assert ["".join(pieces) for pieces in tokens.values()] == ["hiHe", "hiHe"]


def test_an_echo_alone(client: TestClient) -> None:
    answer = ask(client, "hi", echo=True, logprobs=1, max_tokens=0)
    (choice,) = answer["choices"]
    assert (choice["text"], "".join(choice["logprobs"]["tokens"])) == ("hi", "hi")
    assert answer["usage"]["completion_tokens"] == 0


def test_of_two_tokens_with_one_text_the_likelier_is_told() -> None:
    # both half characters are U+FFFD: a client that looks for the largest number must find it
    tokenizer = Tokenizer(byte_level())
    first, second = tokenizer.encode("é")
    writer = LogprobWriter(tokenizer, [], 2)
    told = TokenLogprob(second, -3.0, 2, ((first, -0.25), (second, -3.0)))
    entries = writer.entries((), (), [told])
    assert entries.top_logprobs == [{"\ufffd": -0.25}]
    assert entries.token_logprobs == [-3.0]


def test_minus_infinity_is_a_number(client: TestClient) -> None:
    writer = LogprobWriter(plain_tokenizer(), [], 0)
    entries = writer.entries((), (), [TokenLogprob(70, float("-inf"), 9)])
    assert entries.token_logprobs == [-9999.0]


def test_prompt_logprobs_beside_an_echo(client: TestClient, engine: ScriptedEngine) -> None:
    (choice,) = ask(client, "abc", echo=True, logprobs=1, prompt_logprobs=3, max_tokens=1, return_token_ids=True)[
        "choices"
    ]
    prompt = engine.tokenizer.encode("abc")
    assert choice["prompt_token_ids"] == prompt
    assert len(choice["token_ids"]) == 1
    assert [entry and len(entry) for entry in choice["prompt_logprobs"]] == [None] + [3] * (len(prompt) - 1)
    assert {len(entry) for entry in choice["logprobs"]["top_logprobs"][1:]} == {2}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [5, -1]}, "prompt.1"),
        ({"prompt": [5, 10**6]}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt.0"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"stop": [""]}, "stop.0"),
    ],
)
def test_what_makes_no_sense_is_refused(client: TestClient, fields: dict[str, Any], param: str) -> None:
    answer = client.post(URL, json={"prompt": "hi", **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
