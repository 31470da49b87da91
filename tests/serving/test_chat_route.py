"""`/v1/chat/completions` against an engine that says what it is told."""

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from api_server import events, plain_tokenizer, qwen_tokenizer, served
from intaglio.text.tokenizer import Tokenizer, add_border_tokens
from scripted_engine import ScriptedEngine
from toy_tokenizers import byte_level

URL = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(plain_tokenizer())


@pytest.fixture
def client(engine: ScriptedEngine) -> Iterator[TestClient]:
    with served(engine) as client:
        yield client


def ask(client: TestClient, messages: list[dict[str, Any]] | None = None, **fields: Any) -> Any:
    answer = client.post(URL, json={"model": "toy", "messages": messages or HI, **fields})
    assert answer.status_code == 200, answer.text
    return events(answer.text) if fields.get("stream") else answer.json()


def read(engine: ScriptedEngine) -> str:
    """What the model was given to read."""
    return engine.tokenizer.decode(engine.asked[-1][0], skip_special_tokens=False)


def test_an_answer(client: TestClient, engine: ScriptedEngine) -> None:
    answer = ask(client)
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "toy"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello there!", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    prompt = len(engine.asked[0][0])
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 7,
        "total_tokens": prompt + 7,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert read(engine) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_a_stream_is_the_answer_in_pieces(client: TestClient) -> None:
    *chunks, end = ask(client, stream=True)
    assert end == "[DONE]"
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    # the role comes with the first token, so that a client's time to the first token is honest
    assert deltas[0] == {"role": "assistant", "content": "H"}
    assert all("role" not in delta for delta in deltas[1:])
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello there!"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 6 + ["stop"]


def test_usage_comes_only_where_it_is_asked_for(client: TestClient) -> None:
    # case 37: one chunk, without choices, at the end
    assert all("usage" not in chunk for chunk in ask(client, stream=True)[:-1])
    *chunks, last, _ = ask(client, stream=True, stream_options={"include_usage": True})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 7
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    *chunks, _ = ask(client, stream=True, stream_options={"continuous_usage_stats": True})
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4, 5, 6, 7]


def test_several_choices(client: TestClient, engine: ScriptedEngine) -> None:
    # case 16: each choice is the engine's own, in the stream as in the whole answer
    engine.scripts = ("one<|im_end|>", "another<|im_end|>", "third<|im_end|>")
    answer = ask(client, n=3, seed=7)
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["one", "another", "third"]
    assert (engine.asked[-1][1].n, engine.asked[-1][1].seed) == (3, 7)
    texts = ["", "", ""]
    for chunk in ask(client, n=3, seed=7, stream=True)[:-1]:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == ["one", "another", "third"]


def test_fields_reach_the_sampler(client: TestClient, engine: ScriptedEngine) -> None:
    ask(
        client,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=-1,
        frequency_penalty=2,
        logit_bias={"5": -100},
        seed=3,
        stop=["a", "b"],
        stop_token_ids=[9],
        bad_words=["bad"],
        min_tokens=2,
        max_tokens=4,
        max_completion_tokens=6,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
    )
    params = engine.asked[-1][1]
    assert (params.temperature, params.top_p, params.top_k, params.min_p, params.seed) == (0.5, 0.9, 3, 0.1, 3)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.1, -1, 2)
    assert (params.logit_bias, params.stop, params.stop_token_ids) == ({5: -100}, ("a", "b"), (9,))
    assert (params.bad_words, params.min_tokens, params.max_tokens) == (("bad",), 2, 6)
    assert (params.include_stop_str_in_output, params.skip_special_tokens) == (True, False)


def test_the_models_own_defaults_stand_behind_the_request(engine: ScriptedEngine) -> None:
    with served(engine, defaults={"temperature": 0.2, "top_k": 7}) as client:
        ask(client, temperature=0.9)
    assert (engine.asked[-1][1].temperature, engine.asked[-1][1].top_k) == (0.9, 7)


def test_null_is_absent_and_unknown_fields_are_ignored(client: TestClient, engine: ScriptedEngine) -> None:
    ask(client)
    given = dict.fromkeys(("stop", "temperature", "n", "stream", "tools", "tool_choice", "max_tokens", "seed"))
    ask(client, **given, reasoning_effort="high", store=True, user=7, metadata={"a": [1]})
    assert engine.asked[0] == engine.asked[1]


def test_eos_is_ignored_if_asked_and_own_stop_ids_are_not(client: TestClient, engine: ScriptedEngine) -> None:
    # case 32
    engine.script = "a<|im_end|>b<|im_end|>"
    (choice,) = ask(client, ignore_eos=True, max_tokens=6)["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "ababab"[:3])
    b = engine.tokenizer.encode("b")[0]
    (choice,) = ask(client, ignore_eos=True, max_tokens=6, stop_token_ids=[b])["choices"]
    assert (choice["finish_reason"], choice["stop_reason"], choice["message"]["content"]) == ("stop", b, "a")


def test_log_probabilities_have_raw_bytes(client: TestClient, engine: ScriptedEngine) -> None:
    engine.script = "aé<|im_end|>"  # é is two tokens
    (choice,) = ask(client, logprobs=True, top_logprobs=2, max_tokens=3)["choices"]
    content = choice["logprobs"]["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "aé"
    assert [entry["token"] for entry in content] == ["a", "\ufffd", "\ufffd"]
    assert [len(entry["top_logprobs"]) for entry in content] == [2, 2, 2]
    assert content[0]["top_logprobs"][1] == {"token": "a", "logprob": -1.25, "bytes": [97]}
    chunks = ask(client, logprobs=True, top_logprobs=2, max_tokens=3, stream=True)[:-1]
    streamed = [entry for chunk in chunks for entry in chunk["choices"][0]["logprobs"]["content"]]
    assert streamed == content
    (choice,) = ask(client, logprobs=True, max_tokens=1)["choices"]
    assert choice["logprobs"]["content"][0]["top_logprobs"] == []


def test_prompt_logprobs_and_token_ids(client: TestClient, engine: ScriptedEngine) -> None:
    answer = ask(client, prompt_logprobs=1, return_token_ids=True, max_tokens=2)
    prompt = engine.asked[-1][0]
    assert answer["prompt_token_ids"] == prompt
    assert answer["choices"][0]["token_ids"] == engine.tokenizer.encode("Hello")[:2]
    assert answer["prompt_logprobs"][0] is None
    assert answer["prompt_logprobs"][1][str(prompt[1])] == {
        "logprob": -1.25,
        "rank": 2,
        "decoded_token": engine.tokenizer.decode([prompt[1]]),
    }
    assert len(answer["prompt_logprobs"]) == len(prompt)


def test_content_in_parts_and_the_developers_role(client: TestClient, engine: ScriptedEngine) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    ask(client, [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}])
    assert "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nab<|im_end|>" in read(engine)


def test_calls_without_content_are_kept() -> None:
    # case 28
    engine = ScriptedEngine(qwen_tokenizer())
    call = {"id": "c", "type": "function", "function": {"name": "time", "arguments": '{"zone": "UTC"}'}}
    messages: list[dict[str, Any]] = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "noon"},
    ]
    with served(engine) as client:
        ask(client, messages)
    expected = '<tool_call>\n{"name": "time", "arguments": {"zone": "UTC"}}\n</tool_call><|im_end|>'
    assert expected in read(engine)
    assert "<tool_response>\nnoon\n</tool_response>" in read(engine)


@pytest.mark.parametrize("in_template", [True, False])
def test_exactly_one_bos(in_template: bool) -> None:
    # case 30
    backend = byte_level(special=("<s>", "<|im_end|>"))
    add_border_tokens(backend, bos="<s>")
    template = ("{{ bos_token }}" if in_template else "") + "{{ messages[0].content }}"
    tokenizer = Tokenizer(backend, {"bos_token": "<s>", "eos_token": "<|im_end|>"}, chat_templates=template)
    engine = ScriptedEngine(tokenizer)
    with served(engine) as client:
        ask(client)
        assert client.post("/v1/completions", json={"prompt": "hi"}).status_code == 200
    bos = tokenizer.bos_token_id
    assert bos is not None
    assert [ids.count(bos) for ids, _ in engine.asked] == [1, 1]
    assert engine.asked[0][0][0] == engine.asked[1][0][0] == bos


def test_the_last_message_goes_on(client: TestClient, engine: ScriptedEngine) -> None:
    messages = [*HI, {"role": "assistant", "content": "Hel"}]
    ask(client, messages, continue_final_message=True, add_generation_prompt=False)
    assert read(engine) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nHel"


def test_a_template_of_the_request_needs_trust(client: TestClient, engine: ScriptedEngine) -> None:
    fields = {
        "messages": HI,
        "chat_template": "{{ messages[0].content }}{{ more }}",
        "chat_template_kwargs": {"more": "!"},
    }
    answer = client.post(URL, json=fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template")
    with served(engine, trust_templates=True) as trusting:
        assert trusting.post(URL, json=fields).status_code == 200
    assert read(engine) == "hi!"


def test_truncation_keeps_the_end(client: TestClient, engine: ScriptedEngine) -> None:
    ask(client, truncate_prompt_tokens=3)
    ask(client, [{"role": "user", "content": "x" * 1000}], truncate_prompt_tokens=-1)
    assert [len(ids) for ids, _ in engine.asked] == [3, engine.max_model_len - 1]


def test_formats_become_shapes(client: TestClient, engine: ScriptedEngine) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    ask(client, response_format=named)
    ask(client, response_format={"type": "json_object"})
    ask(client, response_format={"type": "text"})
    ask(client, structured_outputs={"regex": "a+"})
    shapes = [params.structured for _, params in engine.asked]
    assert [shape and shape.kind for shape in shapes] == ["json_schema", "json_object", None, "regex"]
    assert shapes[0] is not None
    assert shapes[0].value == '{"type": "object", "properties": {"a": {"type": "integer"}}}'


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs.json"),
        ({"temperature": -1}, "temperature"),
        ({"stop": ["x"] * 33}, "stop"),
        ({"stop": ""}, "stop"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10, "min_tokens": 11}, "min_tokens"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"messages": [{"role": "user", "content": "x"}], "continue_final_message": True}, "continue_final_message"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"repetition_penalty": 5e-324}, "repetition_penalty"),  # logits divided by it are infinite
    ],
)
def test_what_makes_no_sense_is_refused(client: TestClient, fields: dict[str, Any], param: str) -> None:
    answer = client.post(URL, json={"messages": HI, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_model_without_a_template(client: TestClient) -> None:
    # case 35
    with served(ScriptedEngine(plain_tokenizer(template=None))) as bare:
        answer = bare.post(URL, json={"messages": HI})
        assert answer.status_code == 400
        assert "no chat template" in answer.json()["error"]["message"]
        assert bare.post("/v1/completions", json={"prompt": "hi"}).status_code == 200
