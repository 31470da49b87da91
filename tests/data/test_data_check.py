"""The data-quality report: each problem is found where it is, and nothing is found in good rows."""

import random
from typing import Any

import pytest

from intaglio.data.check import PROBLEMS, DataCheck
from intaglio.data.languages import language_namer, script_of
from intaglio.data.near_duplicates import NearDuplicates
from intaglio.data.readers import Row, Skipped
from intaglio.text.chat import ChatTemplate
from intaglio.text.chat_templates import load_template
from intaglio.text.tokenizer import Tokenizer
from toy_tokenizers import CHATML_TOKENS, byte_level, sentencepiece

EVERY_MODEL = ("<s>", "</s>", "<start_of_turn>", "<end_of_turn>")


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def chat(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"messages": list(messages)}


def chatml(special: tuple[str, ...] = CHATML_TOKENS, template: str | None = "chatml") -> Tokenizer:
    named = {"eos_token": "<|im_end|>"}
    return Tokenizer(byte_level(special), named, chat_templates=load_template(template) if template else None)


def looked(check: DataCheck, *values: Any) -> list[tuple[str, str, str]]:
    found = [check.look(Row(value, f"f:{line}")) for line, value in enumerate(values, 1)]
    return [(finding.problem, finding.where, finding.what) for row in found for finding in row]


SYSTEM = {"role": "system", "content": "Be brief."}
TOOL = {"role": "tool", "content": "12"}
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
GOOD = [
    chat(user("hi"), assistant("hello")),
    chat(SYSTEM, user("a"), assistant("b"), user("c"), assistant("b")),
    {"instruction": "add", "input": "2 2", "output": "4"},
    {"prompt": "2+2=", "completion": "4"},
    {"text": "<s>struck out</s> in HTML is no mark of this model's"},
    {"input_ids": [5, 6, 7]},
]


def test_good_rows_have_nothing_wrong() -> None:
    for check in (DataCheck(), DataCheck(chatml(), context=200)):
        assert looked(check, *GOOD, chat(user("now"), assistant("then"))) == []
        assert (check.report.rows, check.report.notes) == (7, [])
        assert check.report.formats == {"messages": 3, "alpaca": 1, "prompt_completion": 1, "text": 1, "tokens": 1}
    assert looked(DataCheck(chatml(template="qwen")), chat(user("a"), CALL, TOOL, assistant("b"))) == []


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"question": "a", "answer": "b"}, "no format", "fits no format (keys: question, answer)"),
    (chat(user("a"), {"role": "assistant"}), "no format", "messages[1].content: is missing"),
    (chat(user("a")), "role order", "the assistant says nothing"),
    (chat(user("a"), assistant("b"), user("c")), "role order", "the last word is the user's"),
    (chat(assistant("a"), user("b"), assistant("c")), "role order", "the assistant begins"),
    (chat(user("a"), user("b"), assistant("c")), "role order", "messages[1] is from the user again"),
    (chat(user("a"), SYSTEM, assistant("c")), "role order", "messages[1] is from the system, after the beginning"),
    (chat(user("a"), TOOL, assistant("c")), "role order", "messages[1] is from a tool that nobody called"),
    (chat(user("a"), CALL, TOOL, user("b"), assistant("c")), "role order", "a tool's result unanswered"),
    (chat({"role": "bot", "content": "a"}, assistant("c")), "role order", "messages[0] is from 'bot'"),
    (chat(user(" "), assistant("c")), "empty", "messages[0] is empty"),
    ({"prompt": "a", "completion": "\n"}, "empty", "completion is empty"),
    (chat(user("a"), assistant("a")), "repeated turn", "messages[1] says what messages[0] says"),
    (chat(user("a"), assistant("b"), user("a"), assistant("c")), "repeated turn", "messages[2] says what messages[0]"),
    (chat(user("a"), assistant("b<|im_end|>")), "special token", "messages[1] has <|im_end|> written in it"),
    ({"prompt": "[INST] a [/INST]", "completion": "b"}, "special token", "prompt has [/INST], [INST] written in it"),
]


@pytest.mark.parametrize(("value", "problem", "what"), BAD)
def test_each_problem_is_found_without_a_model(value: dict[str, Any], problem: str, what: str) -> None:
    found = [one for one in looked(DataCheck(), GOOD[0], value) if one[0] == problem]
    assert {where for _, where, _ in found} == {"f:2"}
    assert what in found[0][2]


MODEL_BAD: list[tuple[dict[str, Any], str, str]] = [
    (chat(user("a"), assistant("b<|im_end|>")), "doubled token", "has <|im_end|> twice in a row"),
    (chat(user("x" * 90), assistant("b")), "too long", "more than fit"),
    (chat(user("a"), assistant("b", train=False)), "nothing to learn", "no supervised token"),
    (chat(user("a"), CALL, TOOL, assistant("b")), "template", "has no place for tool calls"),
    ({"input_ids": [9999]}, "no format", "beyond the tokenizer's"),
    ({"text": "a<|endoftext|>b"}, "special token", "text has <|endoftext|> written in it"),
]


@pytest.mark.parametrize(("value", "problem", "what"), MODEL_BAD)
def test_each_problem_is_found_with_a_model(value: dict[str, Any], problem: str, what: str) -> None:
    found = [one for one in looked(DataCheck(chatml(), context=64), GOOD[0], value) if one[0] == problem]
    assert [where for _, where, _ in found] == ["f:2"]
    assert what in found[0][2]


def test_a_message_that_the_template_leaves_out_is_named() -> None:
    deaf = "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.content }}{% generation %}<|im_end|>"
    check = DataCheck(chatml(), ChatTemplate(deaf + "{% endgeneration %}{% endfor %}"))
    assert looked(check, chat(SYSTEM, user("a"), assistant("b"))) == [
        ("template", "f:1", "messages[0] is left out or changed")
    ]


def test_another_model_s_template_is_noted_once() -> None:
    check = DataCheck(chatml(), ChatTemplate(load_template("gemma"), {"bos_token": ""}))
    assert looked(check, chat(user("a"), assistant("b")), chat(user("c"), assistant("d"))) == []
    assert check.report.notes == [
        "the template writes <end_of_turn>, which is no token of the model's (first at f:1)",
        "the template writes <start_of_turn>, which is no token of the model's (first at f:1)",
        "answers end in '>', at which the model does not stop (first at f:1)",
        "this is not the model's own template, which writes '<|im_start|>user\\na<|i' where this one writes "
        "'<start_of_turn>user\\na' (first at f:1)",
    ]
    own = DataCheck(chatml(), ChatTemplate(load_template("chatml")))
    looked(own, chat(user("a"), assistant("b")))
    assert own.report.notes == []
    known = DataCheck(chatml((*CHATML_TOKENS, *EVERY_MODEL)), ChatTemplate(load_template("gemma"), {"bos_token": ""}))
    looked(known, chat(user("a"), assistant("b")))
    assert [note.split(",")[0] for note in known.report.notes] == [
        "answers end in '<end_of_turn>'",
        "this is not the model's own template",
    ]


def test_a_model_without_a_template_is_noted() -> None:
    check = DataCheck(chatml(template=None))
    assert looked(check, *GOOD[:4]) == []
    assert check.report.notes == ["the model has no chat template: chats were not rendered (first at f:1)"]
    assert len(check.report.lengths) == 1


def test_unknown_characters_are_no_doubled_tokens() -> None:
    backend = sentencepiece(special=CHATML_TOKENS)
    check = DataCheck(Tokenizer(backend, {"unk_token": "<unk>", "eos_token": "</s>"}))
    assert looked(check, {"text": "\u0600\u0601\u0602"}) == []


def test_duplicates() -> None:
    text = "The quick brown fox jumps over the lazy dog, and then it goes home to sleep under the old oak tree"
    rows = [chat(user(text), assistant("b")), chat(user(text), assistant("b")), chat(user(text + "!"), assistant("b"))]
    assert looked(DataCheck(), *rows, chat(user("hi"), assistant("b")), chat(user("hi"), assistant("c"))) == [
        ("duplicate", "f:2", "is the row at f:1 again"),
        ("near duplicate", "f:3", "says nearly what the row at f:1 says"),
    ]


def test_near_duplicates_are_those_with_most_shingles_in_common() -> None:
    dice = random.Random(0)
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(400)]
    near = NearDuplicates()
    texts = [dice.choices(words, k=60) for _ in range(150)]
    assert [near.add(" ".join(text), str(i)) for i, text in enumerate(texts)] == [None] * 150
    for i, text in enumerate(texts):  # one word of sixty: about 0.96 in common
        assert near.add(" ".join([*text[:30], "OTHER", *text[31:]]), "x") == str(i)
    halves = [" ".join([*texts[i][:30], *texts[i + 1][:30]]) for i in range(0, 100, 2)]
    assert {near.add(text, "x") for text in halves} == {None}
    chinese = "北京是中国的首都，也是一座有三千多年历史的城市，故宫和长城每年吸引着数以百万计的游客前来参观"
    assert near.add(chinese, "zh") is None
    assert near.add(chinese.replace("三", "四") + "。", "x") in (None, "zh")
    assert near.add(chinese + "。", "x") == "zh"


def test_a_common_instruction_makes_no_near_duplicates() -> None:
    dice = random.Random(0)
    instruction = "Did its author like the film? " + " ".join(str(dice.random()) for _ in range(60)) + "\n"
    reviews = [
        " ".join(dice.choices("good bad film plot I it was very never loved hated actor".split(), k=12))
        for _ in range(40)
    ]
    rows = [Row({"prompt": instruction + review, "completion": "yes"}, f"f:{i}") for i, review in enumerate(reviews)]
    blind, seeing = DataCheck(), DataCheck(first=rows)
    for check in (blind, seeing):
        for row in [*rows, Row({"prompt": instruction + reviews[3], "completion": "yes!"}, "f:again")]:
            check.look(row)
    assert blind.report.rows_by_problem["near duplicate"] > 30
    assert [(finding.where, finding.what) for finding in seeing.report.findings] == [
        ("f:again", "says nearly what the row at f:3 says")
    ]


def test_what_rows_are_like_together() -> None:
    check = DataCheck(chatml(), context=64)
    looked(check, chat(user("a" * 9), assistant("b")), {"prompt": "xy", "completion": "é"}, "只有中文的一行")
    report = check.report
    assert report.lengths[1] == 2 + 2 + 1
    assert report.supervised == 2 + 3 + report.lengths[2] - 1
    assert report.supervised_share == report.supervised / sum(report.lengths)
    assert (report.unit, report.context) == ("tokens", 64)
    without = DataCheck()
    looked(without, "abc", "只有中文的一行")
    assert (without.report.unit, without.report.lengths, without.report.supervised_share) == (
        "characters",
        [3, 7],
        None,
    )


def test_rows_by_problem_counts_rows_and_knows_every_problem() -> None:
    check = DataCheck()
    looked(check, chat(assistant("a"), assistant("b"), user("c")), GOOD[0])
    check.skipped(Skipped("f:9", "binary"))
    assert check.report.rows_by_problem == {"unreadable": 1, "role order": 1}
    elsewhere = {"unreadable", "duplicate", "near duplicate", "same answer"}
    assert {problem for _, problem, _ in [*BAD, *MODEL_BAD]} | elsewhere == set(PROBLEMS)


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Grüße, 你好", "Latin"),
        ("你好，world", "Latin"),
        ("床前明月光", "Han"),
        ("これは日本語の文章です", "Kana"),
        ("Привет", "Cyrillic"),
        ("مرحبا", "Arabic"),
        ("42 + 7 = ?", "no letters"),
        ("", "no letters"),
    ],
)
def test_scripts(text: str, script: str) -> None:
    assert script_of(text) == script


def test_languages_are_named_by_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Identifier:
        @staticmethod
        def classify(text: str) -> tuple[str, float]:
            return "de" if "ü" in text else "en", -1.0

    modules = __import__("sys").modules
    monkeypatch.setitem(modules, "py3langid", None)
    assert language_namer() == ("script", script_of)
    monkeypatch.setitem(modules, "py3langid", Identifier)
    kind, language_of = language_namer()
    assert (kind, language_of("Viele Grüße an alle"), language_of("hi")) == ("language", "de", "too short")
