"""Shapes: whatever the logits say, what is made parses and fits; what makes no sense is said in one line."""

import json
import random
import re
import sys
from typing import Any

import pytest

from intaglio.engine.sampling_params import Structured
from intaglio.engine.structured import Shape, check
from intaglio.errors import UserError
from intaglio.text.tokenizer import Tokenizer
from toy_tokenizers import byte_level, sentencepiece

EOS = 0
TOKENIZERS = {
    "byte_level": Tokenizer(byte_level(), eos_token_ids={EOS}),
    "sentencepiece": Tokenizer(sentencepiece(), eos_token_ids={2}),
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["tea", 'a"b', "好"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def json_shape(schema: Any) -> Structured:
    return Structured(kind="json_schema", value=json.dumps(schema))


def write(structured: Structured, tokenizer: Tokenizer, seed: int, vocab: int = 0, most: int = 200) -> str:
    """What a model without any taste writes."""
    shape, draw = Shape(structured, tokenizer, vocab or tokenizer.vocab_size), random.Random(seed)
    made: list[int] = []
    while not shape.over and len(made) < most:
        token_id = draw.choice(shape.allowed().nonzero()[0].tolist())
        made.append(token_id)
        shape.take(token_id)
    assert shape.over
    return b"".join(tokenizer.token_bytes(i) for i in made if i not in tokenizer.eos_token_ids).decode()


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_drawn_fits_the_schema(name: str, seed: int) -> None:
    made = json.loads(write(json_shape(PERSON), TOKENIZERS[name], seed))
    assert set(made) - {"likes"} == {"name", "age"}
    assert len(made["name"]) <= 12
    assert 0 <= made["age"] <= 150
    assert all(like in ("tea", 'a"b', "好") for like in made.get("likes", []))


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_drawn_matches_the_expression_as_a_whole(seed: int) -> None:
    made = write(Structured(kind="regex", value=r"(yes|no), [0-9]{2}(é+)?"), TOKENIZERS["byte_level"], seed)
    assert re.fullmatch(r"(yes|no), [0-9]{2}(é+)?", made)


def test_whatever_is_drawn_follows_the_grammar() -> None:
    grammar = Structured(kind="grammar", value='start: "(" start ")" | "x"')
    made = {write(grammar, TOKENIZERS["byte_level"], seed) for seed in range(8)}
    assert all(re.fullmatch(r"\(*x\)*", text) and text.count("(") == text.count(")") for text in made)
    assert len(made) > 1


def follows(structured: Structured, text: str) -> bool:
    tokenizer = TOKENIZERS["byte_level"]
    shape = Shape(structured, tokenizer, tokenizer.vocab_size)
    for token_id in tokenizer.encode(text):
        if not shape.allowed()[token_id]:
            return False
        shape.take(token_id)
    return bool(shape.allowed()[EOS]) or shape.over


def test_any_object_is_an_object_with_little_space() -> None:
    anything = Structured(kind="json_object")
    for text in ("{}", '{"a": [1, {"b": null}]}', '{\n  "a": 1\n}', '{"a":1}'):
        assert follows(anything, text), text
    for text in ("[1]", "1", '{"a"  : 1}', '{\n\n"a": 1}', '{"a": 1'):
        assert not follows(anything, text), text


def test_a_text_that_may_go_on_may_also_end() -> None:
    shape = Shape(Structured(kind="regex", value="a+"), TOKENIZERS["byte_level"], 303)
    assert not shape.allowed()[EOS]
    shape.take(TOKENIZERS["byte_level"].encode("a")[0])
    assert shape.allowed()[EOS]
    assert not shape.over
    shape.take(EOS)
    assert shape.over


def test_ids_beyond_the_tokenizer_and_special_tokens_are_never_text() -> None:
    allowed = Shape(Structured(kind="regex", value="(?s:.*)"), TOKENIZERS["byte_level"], 320).allowed()
    assert len(allowed) == 320
    assert not allowed[TOKENIZERS["byte_level"].vocab_size :].any()
    assert not allowed[[1, 2]].any()


def test_a_model_without_eos_ends_with_its_shape() -> None:
    tokenizer = Tokenizer(byte_level())
    assert write(Structured(kind="regex", value="ab"), tokenizer, 0) == "ab"
    assert len(Shape(Structured(kind="regex", value="a+"), tokenizer, 303).allowed()) == 303


def test_a_vocabulary_may_be_smaller_than_the_tokenizers() -> None:
    assert write(Structured(kind="regex", value="[ab]"), TOKENIZERS["byte_level"], 0, vocab=100) in "ab"


@pytest.mark.parametrize(
    ("structured", "message"),
    [
        (json_shape({"type": "objet"}), "structured.json_schema: Invalid type: objet"),
        (json_shape({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (json_shape({"type": "integer", "minimum": 5, "maximum": 3}), "minimum .5. is greater than maximum"),
        (json_shape([1]), "structured.json_schema: a schema is a JSON object"),
        (Structured(kind="json_schema", value='{"type"'), "structured.json_schema: not JSON: .*line 1"),
        (Structured(kind="regex", value="(ab"), "structured.regex: .*unclosed group"),
        (Structured(kind="grammar", value="start: foo"), 'structured.grammar: .*unknown name: "foo"'),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(structured: Structured, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        check(structured)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=message):
        Shape(structured, TOKENIZERS["byte_level"], 303)


@pytest.mark.parametrize(
    ("structured", "message"),
    [
        (Structured(kind="grammar", value="start: start"), "structured.grammar: no text has this shape"),
        (json_shape({"$ref": "#"}), "structured.json_schema: no text has this shape"),
        (json_shape({"$ref": "http://127.0.0.1:9/x"}), "does not fetch"),
        (Structured(kind="regex", value="(" * 5000 + "a"), "structured.regex: .*invalid regex"),
        (Structured(kind="json_schema", value='{"items":' * 50000), "structured.json_schema: not JSON"),
        (Structured(kind="regex", value="\ud800"), "structured.regex: .*surrogates not allowed"),
        (Structured(kind="json_schema", value=f'{{"const": {10**400}}}'), "structured.json_schema: .*serializable"),
    ],
)
def test_a_hostile_shape_is_refused_and_not_quoted_at_length(structured: Structured, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        Shape(structured, TOKENIZERS["byte_level"], 303)
    assert len(str(error.value)) < 700


def test_a_sequence_does_not_move_its_twins() -> None:
    structured = Structured(kind="regex", value="ab")
    one, other = [Shape(structured, TOKENIZERS["byte_level"], 303) for _ in range(2)]
    one.take(TOKENIZERS["byte_level"].encode("a")[0])
    assert one.allowed().tolist() != other.allowed().tolist()


def test_without_the_library_the_mend_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UserError, match="structured output needs llguidance; pip install"):
        check(Structured(kind="json_object"))
