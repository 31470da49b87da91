"""Tokenizers: equal to transformers' on the same directory, whatever its configuration says; saved and read again."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from intaglio.errors import UserError
from intaglio.text.pieces import byte_alphabet
from intaglio.text.tokenizer import Tokenizer, add_border_tokens
from toy_tokenizers import byte_level, sentencepiece

TEXTS = ["", "hi", " the  user\n says hi ", "你好, 😀!", "<s>the<s> hi</s>", "<|im_start|>hi<|im_end|>\n", "[INST] the"]


def written(folder: Path, backend: tokenizers.Tokenizer, tokenizer_config: Any = None, **files: Any) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    contents = {"tokenizer_config": tokenizer_config, **files}
    for name, value in contents.items():
        if value is not None:
            (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def with_bos(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    add_border_tokens(backend, bos="<s>")
    return backend


PLAIN = {"tokenizer_class": "PreTrainedTokenizerFast"}
CONFIGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "byte level": (byte_level, {"eos_token": "<|im_end|>"}),
    "byte level, flags": (byte_level, {"bos_token": "<|endoftext|>", "add_bos_token": True, "add_eos_token": True}),
    "sentencepiece": (
        lambda: with_bos(sentencepiece()),
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    ),
    "legacy": (
        lambda: with_bos(sentencepiece(metaspace=False)),
        {"bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": False}},
    ),
    "flag off": (lambda: with_bos(sentencepiece()), {"bos_token": "<s>", "add_bos_token": False}),
    "flag on": (sentencepiece, {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}),
    "new tokens": (
        sentencepiece,
        {"pad_token": "<pad>", "bos_token": "<s>", "additional_special_tokens": ["<new>"], "image_token": "<image>"},
    ),
    "listed tokens": (
        sentencepiece,
        {
            "added_tokens_decoder": {
                "400": {"content": "<b>", "normalized": True, "special": False},
                "399": {"content": "<a>", "lstrip": True, "special": True},
            }
        },
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_equal_to_transformers(name: str, tmp_path: Path) -> None:
    build, config = CONFIGS[name]
    folder = written(tmp_path, build(), PLAIN | config)
    ours, theirs = Tokenizer.from_directory(folder), AutoTokenizer.from_pretrained(folder)
    for text in [*TEXTS, "<pad> <new><image> x", "hi <a> <b>"]:
        for special in (True, False):
            assert ours.encode(text, special) == theirs.encode(text, add_special_tokens=special), text
        ids = theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)
    assert ours.encode_batch(TEXTS) == theirs(TEXTS)["input_ids"]
    assert ours.vocab_size == len(theirs)
    assert ours.special_tokens == theirs.special_tokens_map
    assert ours.special_token_ids >= set(theirs.all_special_ids)
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id)
    assert (ours.pad_token_id, ours.unk_token_id) == (theirs.pad_token_id, theirs.unk_token_id)
    assert ours.adds_bos == (theirs.encode("")[:1] == [theirs.bos_token_id] != [None])


@pytest.mark.parametrize("name", CONFIGS)
def test_saved_directory_opens_in_transformers_with_equal_ids(name: str, tmp_path: Path) -> None:
    build, config = CONFIGS[name]
    source = written(tmp_path, build(), config | {"tokenizer_class": "LlamaTokenizer", "our_key": [1]})
    ours = Tokenizer.from_directory(source)
    ours.chat_templates = {"default": "{{ messages }}\n", "tool_use": "{{ tools }}"}
    ours.save(tmp_path / "out")
    theirs, again = AutoTokenizer.from_pretrained(tmp_path / "out"), Tokenizer.from_directory(tmp_path / "out")
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text) == again.encode(text)
    assert theirs.chat_template == ours.chat_templates == again.chat_templates
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["our_key"] == [1]


def test_saving_gives_back_the_same_post_processor(tmp_path: Path) -> None:
    source = written(tmp_path, byte_level(trim_offsets=True))
    ours = Tokenizer.from_directory(source)
    assert ours.encode_with_offsets("hi  there").offsets[0][0] == 0
    assert all(end > start for start, end in ours.encode_with_offsets("hi   there").offsets)
    ours.save(tmp_path / "out")
    saved = json.loads((tmp_path / "out" / "tokenizer.json").read_text())
    assert saved["post_processor"] == json.loads((source / "tokenizer.json").read_text())["post_processor"]
    assert all(end > start for start, end in ours.encode_with_offsets("hi   there").offsets)


def test_special_tokens_map_counts_where_no_tokens_are_listed(tmp_path: Path) -> None:
    folder = written(tmp_path, sentencepiece(), PLAIN, special_tokens_map={"eos_token": {"content": "</s>"}})
    ours, theirs = Tokenizer.from_directory(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.eos_token == theirs.eos_token == "</s>"


def test_a_token_may_be_an_object_without_a_type(tmp_path: Path) -> None:
    ours = Tokenizer.from_directory(written(tmp_path, sentencepiece(), {"eos_token": {"content": "</s>"}}))
    assert ours.eos_token_id == 2
    ours.save(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).eos_token == "</s>"


def test_what_is_in_padding_and_truncation_changes_no_ids(tmp_path: Path) -> None:
    backend = sentencepiece()
    backend.enable_padding(length=9, pad_id=2, pad_token="</s>")
    backend.enable_truncation(2)
    folder = written(tmp_path, backend, PLAIN)
    ours, theirs = Tokenizer.from_directory(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.encode("the user") == theirs.encode("the user")
    assert ours.pad_token == theirs.pad_token == "</s>"


def test_eos_ids_are_the_union_of_tokenizer_and_both_configs(tmp_path: Path) -> None:
    folder = written(
        tmp_path,
        sentencepiece(),
        PLAIN | {"eos_token": "</s>"},
        generation_config={"eos_token_id": [7, 8]},
        config={"eos_token_id": 9},
    )
    assert Tokenizer.from_directory(folder).eos_token_ids == {2, 7, 8, 9}
    (folder / "generation_config.json").write_text('{"eos_token_id": null}')
    (folder / "config.json").write_text("{}")
    assert Tokenizer.from_directory(folder).eos_token_ids == {2}
    (folder / "config.json").write_text('{"eos_token_id": "x"}')
    with pytest.raises(UserError, match=r"config\.json: eos_token_id is 'x'"):
        Tokenizer.from_directory(folder)


@pytest.mark.parametrize(
    ("in_config", "in_file", "expected"),
    [
        ("a", None, {"default": "a"}),
        ("a", "b", {"default": "b"}),
        ([{"name": "default", "template": "a"}, {"name": "rag", "template": "c"}], None, {"default": "a", "rag": "c"}),
        (None, None, {}),
    ],
)
def test_chat_templates(in_config: Any, in_file: str | None, expected: dict[str, str], tmp_path: Path) -> None:
    folder = written(tmp_path, sentencepiece(), PLAIN | {"chat_template": in_config})
    if in_file:
        (folder / "chat_template.jinja").write_text(in_file)
    ours = Tokenizer.from_directory(folder)
    assert ours.chat_templates == expected
    assert ours.chat_template == expected.get("default")
    theirs = AutoTokenizer.from_pretrained(folder).chat_template
    assert theirs in (expected, expected.get("default"))


def test_bad_directories_end_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no tokenizer\.json; copy it"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(UserError, match=r"tokenizer\.json: not a tokenizer"):
        Tokenizer.from_directory(tmp_path)
    written(tmp_path, sentencepiece(), [1])
    with pytest.raises(UserError, match=r"tokenizer_config\.json: a JSON object"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {"chat_template": [{"name": "default"}]},
        {"chat_template": 5},
        {"added_tokens_decoder": {"x": {"content": "<a>"}}},
        {"added_tokens_decoder": [1]},
        {"extra_special_tokens": 5},
    ],
)
def test_a_malformed_config_ends_in_one_line(config: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer_config\.json: malformed"):
        Tokenizer.from_directory(written(tmp_path, sentencepiece(), config))


def test_ids_of_a_padded_vocabulary_are_no_text() -> None:
    for backend in (byte_level(), sentencepiece()):
        ours = Tokenizer(backend)
        unknown = ours.vocab_size + 100
        assert ours.decode([unknown, -100]) == ""
        assert ours.token_bytes(unknown) == ours.token_bytes(-100) == b""
        ids = ours.encode("hi there")
        assert ours.decode([ids[0], unknown, *ids[1:]]) == "hi there"


def test_byte_alphabet_is_the_librarys() -> None:
    alphabet = byte_alphabet()
    assert sorted(alphabet) == sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert sorted(alphabet.values()) == list(range(256))


BYTES, PIECES = Tokenizer(byte_level(())), Tokenizer(sentencepiece(special=()))


@settings(max_examples=60)
@given(st.text(max_size=20).filter(lambda text: "▁" not in text))
def test_token_bytes_make_up_the_text(text: str) -> None:
    assert b"".join(map(BYTES.token_bytes, BYTES.encode(text))) == text.encode()
    # the first piece may carry a space that is not in the text
    pieces = b"".join(map(PIECES.token_bytes, PIECES.encode(text)))
    assert pieces.removeprefix(b" ") == text.encode().removeprefix(b" ")


def test_border_tokens() -> None:
    backend = sentencepiece()
    add_border_tokens(backend, bos="<s>", eos="</s>")
    assert Tokenizer(backend).encode("hi")[0] == 1
    assert Tokenizer(backend).encode("hi")[-1] == 2
    assert backend.encode("hi", "hi").ids.count(1) == 2
    with pytest.raises(UserError, match="'<nope>', is not in the vocabulary"):
        add_border_tokens(backend, bos="<nope>")


def test_a_bos_that_another_processor_adds_is_seen() -> None:
    backend = sentencepiece()
    backend.post_processor = TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    assert Tokenizer(backend, {"bos_token": "<s>"}).adds_bos
    assert not Tokenizer(sentencepiece(), {"bos_token": "<s>"}).adds_bos


FAMILIES = "llama mistral mixtral qwen3 qwen3_moe gemma2 gemma3_text gpt2 openai-gpt gpt_neo gpt_neox olmo2 deepseek_v3"


@pytest.mark.parametrize("family", FAMILIES.split())
@pytest.mark.parametrize("kind", ["byte level", "legacy"])
def test_no_family_changes_what_we_saved(family: str, kind: str, tmp_path: Path) -> None:
    build, config = CONFIGS[kind]
    ours = Tokenizer(build(), config)
    ours.save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert [theirs.encode(text) for text in TEXTS] == [ours.encode(text) for text in TEXTS]
