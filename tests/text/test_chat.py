"""One rendering of a chat: equal to transformers', with a mask that is right character by character."""

from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from intaglio.errors import UserError
from intaglio.text.chat import ChatTemplate, Rendered, render_chat
from intaglio.text.chat_templates import load_template, template_names
from intaglio.text.tokenizer import Tokenizer, add_border_tokens
from toy_tokenizers import FAMILY_TOKENS, byte_level, sentencepiece

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|end|>", "<s>", "</s>", *FAMILY_TOKENS)
NAMED = {"bos_token": "<s>", "eos_token": "</s>"}


def system(text: Any) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def tool(text: Any) -> dict[str, Any]:
    return {"role": "tool", "content": text}


CALLS = [
    {"type": "function", "function": {"name": "weather", "arguments": {"city": "München", "days": 2}}},
    {"type": "function", "function": {"name": "time", "arguments": '{"zone": "<UTC>"}'}},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "What's the wéather <b>like</b>?",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CHATS: dict[str, list[dict[str, Any]]] = {
    "one question": [user("Hi there")],
    "one turn": [user("hi"), assistant("hello")],
    "with system": [system("Be <brief> & kind."), user("hi"), assistant("hello")],
    "only a question after system": [system("Be brief."), user("hi")],
    "several turns": [user("hi"), assistant("hello"), user("the\n user "), assistant(" hi\n\n"), user("thanks")],
    "several turns and system": [system("S"), user("a"), assistant("b"), user("c"), assistant("d")],
    "unicode": [user("你好 👩‍👩‍👧 é\u0301"), assistant("你好，世界 😀🇩🇪"), user("“”\u00a0"), assistant("ß")],
    "parts": [
        user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        assistant([{"type": "text", "text": "c"}]),
    ],
    "empty answers": [user(""), assistant(""), user("x"), assistant("  ")],
    "hostile text": [user("{{ 7*7 }} {% raw %} <|im_end|></s>"), assistant("[/INST] <end_of_turn>{% generation %}")],
    "nothing but None": [{**user("hi"), "name": None, "tool_calls": None}, assistant("x", reasoning="because")],
}
TOOL_CHATS: dict[str, list[dict[str, Any]]] = {
    "offered": [user("hi")],
    "called": [
        system("S"),
        user("hi"),
        assistant(None, tool_calls=CALLS),
        tool("12°"),
        tool("noon"),
        assistant("It is 12°"),
    ],
    "called with words": [user("hi"), assistant("let me see", tool_calls=CALLS[:1]), tool("12°"), user("thanks")],
}


def pair(template: str, backend: tokenizers.Tokenizer | None = None) -> tuple[Tokenizer, PreTrainedTokenizerFast]:
    """Ours and theirs over equal tokenizers."""
    backend = backend or byte_level(SPECIAL)
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend, **NAMED)
    theirs.chat_template = template
    return Tokenizer(backend, NAMED, chat_templates=template), theirs


def pieces(ours: Tokenizer, rendered: Rendered) -> list[str]:
    """The text of each masked run of tokens."""
    runs: list[list[int]] = []
    for i, (token, on) in enumerate(zip(rendered.ids, rendered.assistant_mask, strict=True)):
        if on and (i == 0 or not rendered.assistant_mask[i - 1]):
            runs.append([])
        if on:
            runs[-1].append(token)
    return [ours.decode(run, skip_special_tokens=False) for run in runs]


@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("build", [byte_level, sentencepiece])
@pytest.mark.parametrize("name", template_names())
def test_text_ids_and_mask_equal_transformers(name: str, build: Any, prompt: bool) -> None:
    ours, theirs = pair(load_template(name), build(special=SPECIAL))
    chats: list[tuple[Any, Any]] = [(chat, None) for chat in CHATS.values()]
    if name == "qwen":
        chats += [(chat, TOOLS) for chat in TOOL_CHATS.values()] + [(TOOL_CHATS["called"], None)]
    for chat, tools in chats:
        options: dict[str, Any] = {"tools": tools, "add_generation_prompt": prompt}
        rendered = render_chat(ours, chat, **options)
        assert rendered.text == theirs.apply_chat_template(chat, tokenize=False, **options)
        expected = theirs.apply_chat_template(
            chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **options
        )
        assert rendered.ids == expected["input_ids"]
        assert rendered.assistant_mask == [bool(on) for on in expected["assistant_masks"]]


S, E = "<s>", "</s>"
FORMATS = {
    "alpaca": "S\n\n### Instruction:\nU\n\n### Response:\nA</s>\n\n### Instruction:\nV\n\n### Response:\n",
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
    "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n",
    "gemma": "<s><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
    "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n",
    "llama2": "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST] A </s><s>[INST] V [/INST]",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
    "U<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "<s>[INST] U[/INST] A</s>[INST] S\n\nV[/INST]",
    "phi3": "<|system|>\nS<|end|>\n<|user|>\nU<|end|>\n<|assistant|>\nA<|end|>\n<|user|>\nV<|end|>\n<|assistant|>\n",
    "zephyr": "<|system|>\nS</s>\n<|user|>\nU</s>\n<|assistant|>\nA</s>\n<|user|>\nV</s>\n<|assistant|>\n",
}
FORMATS["qwen"] = FORMATS["chatml"]


@pytest.mark.parametrize("name", template_names())
def test_each_template_writes_its_familys_format(name: str) -> None:
    chat = [system("S"), user("U"), assistant("A"), user("V")]
    assert ChatTemplate(load_template(name), NAMED).render(chat, add_generation_prompt=True) == FORMATS[name]


def test_qwen_writes_tools_and_calls_and_results() -> None:
    text = ChatTemplate(load_template("qwen")).render(TOOL_CHATS["called"], tools=TOOLS)
    before, listed = text.split("<tools>\n")
    assert before.startswith("<|im_start|>system\nS\n\n# Tools\n\nYou may call")
    assert listed.startswith(
        '{"type": "function", "function": {"name": "weather", "description": "What\'s the wéather <b>'
    )
    assert (
        "<|im_start|>assistant\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "München", "days": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time", "arguments": {"zone": "<UTC>"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n12°\n</tool_response>\n<tool_response>\nnoon\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nIt is 12°<|im_end|>\n"
    ) in text


@pytest.mark.parametrize("name", sorted(set(template_names()) - {"qwen"}))
def test_what_a_template_has_no_place_for_is_refused(name: str) -> None:
    template = ChatTemplate(load_template(name), NAMED)
    with pytest.raises(UserError, match="no place for tools"):
        template.render([user("hi")], tools=TOOLS)
    with pytest.raises(UserError, match="no place for tool calls"):
        template.render([user("hi"), assistant(None, tool_calls=CALLS)])


@pytest.mark.parametrize("name", template_names())
def test_masks_by_prefixes_equal_masks_by_marks(name: str) -> None:
    source = load_template(name)
    plain = source.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")
    marked, bare = ChatTemplate(source, NAMED), ChatTemplate(plain, NAMED)
    assert marked.has_generation_marks
    assert not bare.has_generation_marks
    ours = Tokenizer(byte_level(SPECIAL), NAMED)
    for title, chat in CHATS.items():
        if name == "mistral" and title.startswith("several turns and system"):
            continue  # its system message moves to the last user turn: no prefixes, refused below
        left = render_chat(ours, chat, template=marked, add_generation_prompt=chat[-1]["role"] == "user")
        right = render_chat(ours, chat, template=bare, add_generation_prompt=chat[-1]["role"] == "user")
        assert left.ids == right.ids
        assert left.assistant_spans == right.assistant_spans, title
        assert left.assistant_mask == right.assistant_mask


def test_end_of_turn_is_supervised_and_the_newline_after_it_is_not() -> None:
    ours, _ = pair(load_template("chatml"))
    rendered = render_chat(ours, CHATS["several turns"])
    assert pieces(ours, rendered) == ["hello<|im_end|>", " hi\n\n<|im_end|>"]
    gemma, _ = pair(load_template("gemma"), sentencepiece())
    rendered = render_chat(gemma, [user("hi"), assistant("hi")])
    assert pieces(gemma, rendered) == ["hi<end_of_turn>"]
    assert sum(rendered.assistant_mask) == 3  # h, i and the terminator; the user's terminator is not among them


def test_without_marks_the_turn_ends_with_its_special_token_or_with_its_text() -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ end }}\n{% endfor %}"
    source += "{% if add_generation_prompt %}assistant: {% endif %}"
    ours, _ = pair(source)
    chat = [user("hi"), assistant("a </s>b"), user("c"), assistant("d")]
    assert pieces(ours, render_chat(ours, chat, end="</s>")) == ["a </s>b</s>", "d</s>"]
    assert pieces(ours, render_chat(ours, chat, end="")) == ["a </s>b\n", "d\n"]
    assert pieces(ours, render_chat(ours, chat, end=" <|im_end|> x")) == ["a </s>b <|im_end|> x\n", "d <|im_end|> x\n"]


def test_an_assistant_at_index_0_is_masked_alone() -> None:
    ours, _ = pair(
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    assert render_chat(ours, [assistant("A"), user("B")]).assistant_mask == [True, False]
    bare, _ = pair("{% for m in messages %}{{ m.content }}{% endfor %}")
    assert render_chat(bare, [assistant("A"), user("B")]).assistant_mask == [True, False]


def test_a_token_that_straddles_the_border_is_the_assistants() -> None:
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={"a": 0, "b": 1, "x": 2, "y": 3, "ab": 4}, merges=[("a", "b")])
    )
    ours = Tokenizer(backend, chat_templates="{% for m in messages %}{{ m.content }}{% endfor %}")
    rendered = render_chat(ours, [user("xa"), assistant("by"), user("y")])
    assert rendered.ids == [2, 4, 3, 3]
    assert rendered.assistant_mask == [False, True, True, False]


@pytest.mark.parametrize("trim_offsets", [True, False])
def test_white_space_at_the_borders_belongs_to_its_side(trim_offsets: bool) -> None:
    backend = byte_level(SPECIAL, trim_offsets=trim_offsets)
    ours = Tokenizer(backend, NAMED, chat_templates="{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    rendered = render_chat(ours, [user("hi  "), assistant("  hi  "), user("  hi")])
    assert pieces(ours, rendered) == ["  hi  <|im_end|>"]


@pytest.mark.parametrize("build", [byte_level, sentencepiece])
def test_all_pieces_of_a_character_are_masked(build: Any) -> None:
    ours, _ = pair(load_template("chatml"), build(special=SPECIAL))
    text = "你😀é"
    rendered = render_chat(ours, [user("你😀"), assistant(text), user("é")])
    masked = [i for i, on in zip(rendered.ids, rendered.assistant_mask, strict=True) if on]
    assert b"".join(map(ours.token_bytes, masked)).replace(b" ", b"") == (text + "<|im_end|>").encode()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=12),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), max_size=4),
)
def test_a_mask_is_what_shares_a_character_with_a_span(
    steps: list[tuple[int, int]], gaps: list[tuple[int, int]]
) -> None:
    """Against every pair of them; stretches may be empty or share characters, as the pieces of one character do."""
    offsets, spans, place, end = [], [], 0, 0
    for step, length in steps:
        place, end = place + step, max(end, place + step + length)
        offsets.append((place, end))
    place = 0
    for gap, length in gaps:
        spans.append((place + gap, place + gap + length))
        place += gap + length
    rendered = Rendered("", [0] * len(offsets), offsets, None, 0)  # type: ignore[arg-type]
    taken = [set(range(start, max(end, start + 1))) for start, end in offsets]
    wanted = [any(characters & set(range(*span)) for span in spans) for characters in taken]
    assert rendered.mask(spans) == wanted


def test_a_chat_is_rendered_no_more_often_than_its_mask_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    write = ChatTemplate.write

    def counted(self: ChatTemplate, known: Any) -> str:
        written.append(write(self, known))
        return written[-1]

    monkeypatch.setattr(ChatTemplate, "write", counted)
    source = load_template("chatml")
    _ = render_chat(pair(source)[0], CHATS["several turns"]).assistant_mask
    assert len(written) == 2  # with the marks and without
    written.clear()
    bare = source.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")
    _ = render_chat(pair(bare)[0], [user("a"), assistant("b"), user("c"), assistant("d")]).assistant_mask
    assert len(written) == 6  # all of it, which is the last answer's end too; before, asked and answered for each


def test_prefixes_that_do_not_hold_are_refused() -> None:
    thinking = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if loop.last and m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    ours, _ = pair(thinking)
    rendered = render_chat(ours, CHATS["several turns"])
    assert rendered.ids  # a prompt needs no mask
    with pytest.raises(
        UserError, match=r"messages\[1\]: the messages up to it are rendered differently .*generation %"
    ):
        _ = rendered.assistant_mask
    picky = "{% if messages[-1].role == 'user' and not add_generation_prompt %}"
    picky += "{{ raise_exception('no answer') }}{% endif %}x"
    picky_about_ends, _ = pair(picky)
    with pytest.raises(UserError, match=r"messages\[1\]: rendering the messages before it fails \(no answer\)"):
        _ = render_chat(picky_about_ends, [user("a"), assistant("b")]).assistant_mask
    mistral, _ = pair(load_template("mistral").replace("{%- generation -%}", "").replace("{%- endgeneration -%}", ""))
    with pytest.raises(UserError, match="rendered differently"):
        _ = render_chat(mistral, CHATS["several turns and system"]).assistant_mask


@pytest.mark.parametrize("template_writes", [0, 1, 2])
@pytest.mark.parametrize("tokenizer_adds", [False, True])
def test_exactly_one_bos(template_writes: int, tokenizer_adds: bool) -> None:
    backend = byte_level(SPECIAL)
    if tokenizer_adds:
        add_border_tokens(backend, bos="<s>")
    ours = Tokenizer(
        backend,
        NAMED,
        chat_templates="<s>" * template_writes + "{% generation %}{{ messages[0].content }}{% endgeneration %}",
    )
    rendered = render_chat(ours, [assistant("hi")])
    bos = [ours.token_id("<s>")] if template_writes or tokenizer_adds else []
    assert rendered.ids == bos + ours.encode("hi", add_special_tokens=False)
    assert rendered.assistant_mask == [False] * len(bos) + [True] * (len(rendered.ids) - len(bos))
    assert len(rendered.offsets) == len(rendered.ids)


def test_spans_inside_macros_and_set_blocks_are_found_where_they_land() -> None:
    macro = "{% macro turn(m) %}[{% generation %}{{ m.content }}{% endgeneration %}]{% endmacro %}"
    source = macro + "{% set held %}{{ turn(messages[0]) }}{% endset %}before {{ held }} after"
    held = ChatTemplate(source).conversation([assistant("\ufdd0A")])
    assert (held.text(), held.marked()) == ("before [\ufdd0A] after", [(8, 10)])
    with pytest.raises(UserError, match="changed after it is written"):
        ChatTemplate(macro + "{{ turn(messages[0]) | length }}").conversation([assistant("A")]).marked()
    nested = (
        "{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}c{% generation %}{% endgeneration %}"
    )
    conversation = ChatTemplate(nested).conversation([assistant("A")])
    assert (conversation.text(), conversation.marked()) == ("abc", [(0, 2)])


TEMPLATES = [
    "{% for m in messages %}\n  {% if loop.index is odd %}\n {{ m.content }}\n{% continue %}{% endif %}\n{% endfor %}",
    "{%- for m in messages[::-1] %}{{ m['role'].upper() ~ m.get('content').split('i')[-1] }}{% break %}{% endfor %}",
    "{{ messages | tojson(indent=2) }}{{ {'b': 1, 'a': '<é>'} | tojson(sort_keys=true, ensure_ascii=true) }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "{{ strftime_now('%Y') }}{{ undefined_thing }}{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ documents is none }}",
    "{{ dict.fromkeys(['a']) }}{{ dict(a=1) }}{{ ''.__class__ }}",
    "{{ messages[0].reasoning_content }}{{ messages[1].thinking }}{{ messages[1].reasoning_content }}{{ extra }}",
]


@pytest.mark.parametrize("source", TEMPLATES)
def test_surroundings_equal_transformers(source: str) -> None:
    ours, theirs = pair(source)
    chat = [user("hi <b>é"), assistant("x", reasoning="hm"), user("bye")]
    expected = theirs.apply_chat_template(chat, tokenize=False, extra=[1, {"a": None}])
    assert render_chat(ours, chat, extra=[1, {"a": None}]).text == expected


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('only two turns') }}", "only two turns"),
        ("{% for m in messages %}", "line 1"),
        ("{{ missing.thing }}", "'missing' is undefined"),
        ("{{ messages[0].content + 1 }}", "fails with TypeError"),
        ("{{ 1 // 0 }}", "fails with ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "tries to leave the sandbox"),
        ("{{ messages.append(1) }}", "tries to leave the sandbox"),
        ("{% set x = messages[0].update({'role': 'system'}) %}", "tries to leave the sandbox"),
        ("{% for i in range(1000000000) %}{% endfor %}", "fails with OverflowError"),
        ("{{ 'a' * 10 ** 9 }}", "tries to leave the sandbox"),
        ("{{ 9 ** (9 ** 9) }}", "tries to leave the sandbox"),
        ("{{ raise_exception.__globals__ }}{{ raise_exception.__globals__.x }}", "tries to leave the sandbox"),
        ("{% set ns = namespace(__class__=1) %}", "tries to leave the sandbox"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "tries to leave the sandbox"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails with RecursionError"),
        ("{% include 'x' %}", "fails with TypeError"),
    ],
)
def test_a_failing_or_hostile_template_ends_in_one_line(source: str, reason: str) -> None:
    ours = Tokenizer(byte_level(), chat_templates=source)
    with pytest.raises(UserError) as caught:
        render_chat(ours, [user("hi")])
    assert str(caught.value).startswith("the tokenizer's chat template: ")
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([], "messages: a conversation needs"),
        ("hi", "messages: a list"),
        ([user("a"), "b"], r"messages\[1\]: an object"),
        ([{"content": "a"}], r"messages\[0\]\.role: is None"),
        ([user("a"), {"role": "assistant"}], r"messages\[1\]\.content: is missing"),
        ([user(3)], r"messages\[0\]\.content: is int"),
        ([user([{"type": "image"}])], r"messages\[0\]\.content\[0\]"),
        ([user("a"), assistant(None, tool_calls="x")], r"messages\[1\]\.tool_calls: is not a list"),
        ([user("a"), assistant(None, tool_calls=[{"id": 1}])], r"messages\[1\]\.tool_calls\[0\]: names no function"),
        ([{**user("a"), "x": object()}], "object is none"),
    ],
)
def test_malformed_messages_are_named(messages: Any, where: str) -> None:
    with pytest.raises(UserError, match=where):
        render_chat(pair("x")[0], messages)


def test_the_template_that_is_taken() -> None:
    ours = Tokenizer(byte_level(), chat_templates={"default": "d", "tool_use": "t"})
    assert render_chat(ours, [user("a")]).text == "d"
    assert render_chat(ours, [user("a")], tools=TOOLS).text == "t"
    assert render_chat(ours, [user("a")], template=ChatTemplate("x")).text == "x"
    with pytest.raises(UserError, match="has no chat template; it is a base model"):
        render_chat(Tokenizer(byte_level()), [user("a")])
    with pytest.raises(UserError, match="did you mean chatml"):
        load_template("chatmll")
