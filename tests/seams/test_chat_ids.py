"""The ids of a conversation, whoever renders it: training, the engine, the API, and transformers on the same directory.

One tokenizer knows no BOS; the other puts one before every text, and so does its template: two would be one too many.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from api_server import served
from intaglio.checkpoints.load import load_directory
from intaglio.checkpoints.save import save_model
from intaglio.data.examples import MaskPolicy, encode_sample
from intaglio.data.formats import Sample
from intaglio.engine.llm import LLM
from intaglio.text.chat_templates import load_template
from intaglio.text.tokenizer import Tokenizer
from scripted_engine import ScriptedEngine
from toy_llms import PADDED_VOCAB, random_model
from toy_tokenizers import sentencepiece

HELLO = {"role": "user", "content": "hello  there, 你好\n"}
ANSWER = {"role": "assistant", "content": "Hi! 42."}
CHATS: dict[str, list[dict[str, str]]] = {
    "one question": [HELLO],
    "two turns": [HELLO, ANSWER, {"role": "user", "content": "thanks"}],
    "told first how to speak": [{"role": "system", "content": "Be brief."}, HELLO, ANSWER, HELLO],
}


def with_bos() -> Tokenizer:
    """As Llama 2: `<s>` before every text, and in the template."""
    backend = sentencepiece(special=())
    backend.post_processor = TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>"}
    return Tokenizer(backend, names, chat_templates=load_template("llama2"))


@pytest.fixture(scope="module", params=["no BOS", "a BOS of the tokenizer and of the template"])
def folder(request: pytest.FixtureRequest, toy_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of ours; its weights do not matter."""
    if request.param == "no BOS":
        return toy_dir
    path = tmp_path_factory.mktemp("models") / "bos"
    tokenizer = with_bos()
    spec = load_directory(toy_dir).spec.updated(vocab_size=max(PADDED_VOCAB, tokenizer.vocab_size + 9))
    save_model(random_model(spec), path, tokenizer)
    return path


def by_training(folder: Path, messages: Any) -> list[int]:
    """What an example with some answer to the last question begins with, up to the first supervised token."""
    chat = Sample("chat", "rows:1", messages=(*messages, ANSWER))
    example = encode_sample(chat, Tokenizer.from_directory(folder), MaskPolicy("last_assistant"))
    return [int(token) for token in example.ids[: int(example.supervised.argmax())]]


def by_engine(folder: Path, messages: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What `LLM.chat` gives its engine to read."""
    asked: list[Any] = []
    llm = LLM(folder)

    def stream(prompts: Any, params: Any) -> Iterator[Any]:
        asked.extend(prompts)
        yield from ()

    monkeypatch.setattr(llm, "stream", stream)
    assert list(llm.chat(messages)) == []
    return list(asked[0])


def by_api(folder: Path, messages: Any) -> list[list[int]]:
    """What `/tokenize` says, what a chat says of its prompt, and what the engine got."""
    engine = ScriptedEngine(Tokenizer.from_directory(folder), script="hi")
    with served(engine) as client:
        told = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
        body = {"messages": messages, "max_tokens": 1, "return_token_ids": True}
        chat = client.post("/v1/chat/completions", json=body).json()
    return [told, chat["prompt_token_ids"], engine.asked[0][0]]


def by_transformers(folder: Path, messages: Any) -> list[int]:
    """`apply_chat_template`, as whoever uses transformers calls it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])


@pytest.mark.parametrize("name", CHATS)
def test_all_read_the_same(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = CHATS[name]
    wanted = by_transformers(folder, messages)
    assert len(wanted) > 15
    assert by_training(folder, messages) == wanted
    assert by_engine(folder, messages, monkeypatch) == wanted
    assert by_api(folder, messages) == [wanted] * 3


def test_exported_and_opened_again(folder: Path, tmp_path: Path) -> None:
    """By us, and by transformers, which writes what it read."""
    messages = CHATS["two turns"]
    wanted = by_transformers(folder, messages)
    save_model(load_directory(folder), tmp_path / "export", Tokenizer.from_directory(folder))
    assert by_transformers(tmp_path / "export", messages) == wanted
    AutoTokenizer.from_pretrained(tmp_path / "export").save_pretrained(tmp_path / "theirs")
    assert by_training(tmp_path / "theirs", messages) == wanted


def test_there_is_one_bos_where_there_is_one(folder: Path) -> None:
    ids, tokenizer = by_transformers(folder, CHATS["one question"]), Tokenizer.from_directory(folder)
    if tokenizer.adds_bos:
        assert ids.count(tokenizer.bos_token_id or 0) == 1
