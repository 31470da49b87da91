"""Function calls: found in text as it comes, forced by a schema, and in answers as OpenAI has them."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from api_server import events, plain_tokenizer, qwen_tokenizer, served
from intaglio.errors import UserError
from intaglio.serving.protocol.chat import ToolBody
from intaglio.serving.tools import BareCalls, Call, ForcedCall, TaggedCalls, ToolParser, forced_shape, parser_of
from intaglio.text.chat import ChatTemplate, chat_template_of
from scripted_engine import ScriptedEngine

LLAMA = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.tool_calls %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
TIME = {"type": "function", "function": {"name": "time", "description": "now"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "München"}}\n</tool_call>'


def parsed(parser: ToolParser, pieces: list[str]) -> list[str | Call]:
    """What is found, neighbouring texts joined."""
    found = [piece for text in pieces for piece in parser.add(text)] + parser.finish()
    joined: list[str | Call] = []
    for piece in found:
        if isinstance(piece, str) and joined and isinstance(joined[-1], str):
            joined[-1] += piece
        elif piece:
            joined.append(piece)
    return joined


TAGGED: list[tuple[str, list[str | Call]]] = [
    ("hello", ["hello"]),
    ("a < b <tool", ["a < b <tool"]),
    (CALL, [Call("weather", '{"city": "München"}')]),
    (f"Let me see.\n{CALL}\n{CALL}\n", ["Let me see.", *[Call("weather", '{"city": "München"}')] * 2]),
    ('<tool_call>{"name": "time"}', [Call("time", "{}")]),
    ('<tool_call>{"name": "ti', ['<tool_call>{"name": "ti']),
    ("<tool_call>nonsense</tool_call> and", ["<tool_call>nonsense</tool_call>and"]),
    ('<tool_call>{"name": "x", "arguments": "{}"}</tool_call>', [Call("x", "{}")]),
    ('<tool_call>{"name": "\\ud800"}</tool_call>', ['<tool_call>{"name": "\\ud800"}</tool_call>']),
]
BARE: list[tuple[str, list[str | Call]]] = [
    ("hello {", ["hello {"]),
    ('{"name": "f", "parameters": {"a": "}; {"}}', [Call("f", '{"a": "}; {"}')]),
    ('<|python_tag|>{"name": "f", "parameters": {}}', [Call("f", "{}")]),
    ('{"name": "f", "parameters": {}}; {"name": "g", "arguments": {"b": 1}}', [Call("f", "{}"), Call("g", '{"b": 1}')]),
    ('{"a": 1}', ['{"a": 1}']),
    ('{"name": "f", "param', ['{"name": "f", "param']),
    ('{"name": "f"} but', ['{"name": "f"} but']),
    ("<|py", ["<|py"]),
    ("", []),
]
CASES = [(TaggedCalls, *case) for case in TAGGED] + [(BareCalls, *case) for case in BARE]


@pytest.mark.parametrize(("kind", "text", "expected"), CASES)
def test_calls_are_found_however_the_text_comes(
    kind: Callable[[], ToolParser], text: str, expected: list[str | Call]
) -> None:
    assert parsed(kind(), [text]) == expected
    assert parsed(kind(), list(text)) == expected


@given(text=st.text('<tool_call>/ {}"\n', max_size=60), cut=st.integers(0, 60))
def test_text_without_calls_comes_out_as_it_went_in(text: str, cut: int) -> None:
    assert "".join(map(str, parsed(TaggedCalls(), [text[:cut], text[cut:]]))) == text


def test_text_is_not_held_back_longer_than_needed() -> None:
    parser = TaggedCalls()
    assert parser.add("Hello <to") == ["Hello"]
    assert parser.add("wn") == [" <town"]
    assert BareCalls().add("Hello") == ["Hello"]


def test_the_form_is_read_off_the_template() -> None:
    assert parser_of(chat_template_of(qwen_tokenizer())) is TaggedCalls
    assert parser_of(ChatTemplate(LLAMA)) is BareCalls
    with pytest.raises(UserError, match="no place for tools"):
        parser_of(chat_template_of(plain_tokenizer()))
    with pytest.raises(UserError, match="a form that is not read"):
        parser_of(ChatTemplate("{{ tools }}{{ messages[0].content }}"))


def tools(*given: dict[str, Any]) -> list[ToolBody]:
    return [ToolBody.model_validate(tool) for tool in given]


def test_one_tool_is_forced_by_its_own_schema() -> None:
    shape, parser = forced_shape(tools(WEATHER))
    assert json.loads(shape.value) == WEATHER["function"]["parameters"]  # type: ignore[index]
    assert parsed(parser(), ['{"city"', ': "x"}']) == [Call("weather", '{"city": "x"}')]


def test_of_several_tools_one_is_forced_and_definitions_are_kept_apart() -> None:
    def tool(name: str, kind: str) -> dict[str, Any]:
        parameters = {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": kind}}}
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    shape, parser = forced_shape(tools(tool("f", "string"), tool("g", "integer")))
    schema = json.loads(shape.value)
    assert schema["$defs"] == {"0.A": {"type": "string"}, "1.A": {"type": "integer"}}
    arguments = [choice["properties"]["arguments"]["properties"]["a"] for choice in schema["anyOf"]]
    assert arguments == [{"$ref": "#/$defs/0.A"}, {"$ref": "#/$defs/1.A"}]
    assert parsed(parser(), ['{"name": "g", "arguments": {"a": 1}}']) == [Call("g", '{"a": 1}')]
    assert parsed(ForcedCall(None), ['{"name": "g"', ', "argu']) == ['{"name": "g", "argu']


@pytest.fixture(scope="module")
def engine() -> ScriptedEngine:
    return ScriptedEngine(qwen_tokenizer(), max_model_len=4096)


@pytest.fixture(scope="module")
def client(engine: ScriptedEngine) -> Iterator[TestClient]:
    with served(engine) as client:
        yield client


def ask(client: TestClient, **fields: Any) -> Any:
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [WEATHER, TIME], **fields}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    return events(answer.text)[:-1] if fields.get("stream") else answer.json()["choices"][0]


def test_an_answer_with_calls(client: TestClient, engine: ScriptedEngine) -> None:
    engine.script = f"{CALL}\n{CALL}<|im_end|>"
    choice = ask(client)
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    first, second = choice["message"]["tool_calls"]
    assert first["function"] == {"name": "weather", "arguments": '{"city": "München"}'}
    assert first["type"] == "function"
    assert first["id"] != second["id"]
    assert '"name": "weather"' in engine.tokenizer.decode(engine.asked[-1][0])
    assert len(ask(client, parallel_tool_calls=False)["message"]["tool_calls"]) == 1


def test_a_stream_with_calls(client: TestClient, engine: ScriptedEngine) -> None:
    engine.script = f"Let me see.\n{CALL}\n{CALL}<|im_end|>"
    chunks = ask(client, stream=True)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Let me see."
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [(call["index"], call["function"]["name"]) for call in calls] == [(0, "weather"), (1, "weather")]
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": "München"}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"][0]["finish_reason"]] == [
        "tool_calls"
    ]


def test_tool_choice(client: TestClient, engine: ScriptedEngine) -> None:
    engine.script = '{"city": "x"}<|im_end|>'
    named = {"type": "function", "function": {"name": "weather"}}
    choice = ask(client, tool_choice=named)
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "x"}'}
    shape = engine.asked[-1][1].structured
    assert shape is not None
    assert json.loads(shape.value)["properties"] == {"city": {"type": "string"}}
    engine.script = '{"name": "time", "arguments": {}}<|im_end|>'
    assert ask(client, tool_choice="required")["message"]["tool_calls"][0]["function"]["name"] == "time"
    engine.script = f"{CALL}<|im_end|>"
    choice = ask(client, tool_choice="none")
    assert choice["message"]["content"] == CALL
    assert "weather" not in engine.tokenizer.decode(engine.asked[-1][0])


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "function", "function": {"name": "unknown"}}},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "retrieval"}]},
    ],
)
def test_tools_that_cannot_be_called_are_refused(client: TestClient, fields: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [WEATHER], **fields}
    assert client.post("/v1/chat/completions", json=body).status_code == 400


def test_arguments_that_are_no_object_are_refused(client: TestClient) -> None:
    for arguments in ("[1]", "{", '{"a": "\\ud800"}'):
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
        answer = client.post("/v1/chat/completions", json={"messages": messages})
        assert answer.status_code == 400, arguments
        assert answer.json()["error"]["param"] == "messages[1].tool_calls"


def test_a_template_without_tools_refuses_them() -> None:
    with served(ScriptedEngine(plain_tokenizer())) as client:
        body = {"messages": [{"role": "user", "content": "hi"}], "tools": [WEATHER]}
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "tools"
