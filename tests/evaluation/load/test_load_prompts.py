"""What a load test asks: lengths, shared beginnings, files; and servers that do not tokenise."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from api_server import plain_tokenizer
from intaglio.errors import UserError
from intaglio.evaluation.load.conversations import Conversation, Turn
from intaglio.evaluation.load.lengths import Lengths, parse_lengths
from intaglio.evaluation.load.prompts import FilePrompts, RandomPrompts, Vocabulary, read_prompts, words_of
from intaglio.evaluation.load.target import Target
from scripted_stream import Script, ScriptedTransport
from virtual_time import run_virtual

WORDS = Vocabulary((" one", " two", " six"), (1, 2, 6))


def vocabulary(script: Script, **more: Any) -> Vocabulary:
    async def test() -> Vocabulary:
        target = Target("x", "m", transport=ScriptedTransport(script), **more)
        async with target.client() as client:
            return await words_of(client, target)

    return run_virtual(test())


def short_words(word: str) -> list[int]:
    """A tokenizer to whom every word of up to four letters is one token."""
    return [len(word)] * (1 if len(word) < 6 else 2)


def test_words_are_those_that_are_one_token_to_the_server() -> None:
    found = vocabulary(Script(tokenize=short_words))
    assert 20 < len(found.words) == len(found.ids)
    assert all(len(word) < 6 and len(word) == i for word, i in zip(found.words, found.ids, strict=True))


def test_words_are_those_of_a_tokenizer_that_is_given() -> None:
    with pytest.raises(UserError, match="no tokens of this model"):
        vocabulary(Script(), tokenizer=plain_tokenizer())  # bytes


def test_a_server_that_does_not_tokenise_is_sent_words() -> None:
    found = vocabulary(Script(tokenize=None))
    assert found.ids == ()
    (turn,) = next(RandomPrompts(Lengths.fixed(7)).conversations(found, "completions", ""))
    assert isinstance(turn.said, str)
    assert len(turn.said.split()) == 7


def take(prompts: RandomPrompts, endpoint: Any, fresh: str = "a", count: int = 20) -> list[Conversation]:
    return list(islice(prompts.conversations(WORDS, endpoint, fresh), count))


def test_prompts_have_the_length_asked_for_and_share_only_the_prefix() -> None:
    prompts = RandomPrompts(Lengths.fixed(30), Lengths.fixed(9), shared=12)
    ids = [turn.said for (turn,) in take(prompts, "completions")]
    assert {len(prompt) for prompt in ids} == {30}
    assert all(token in (1, 2, 6) for prompt in ids for token in prompt)
    texts = [str(turn.said) for (turn,) in take(prompts, "chat")]
    heads = {" ".join(text.split()[:12]) for text in texts}
    assert len(heads) == 1
    assert {len(text.split()) for text in texts} == {30}
    assert len(set(texts)) == 20
    others = [str(turn.said) for (turn,) in take(prompts, "chat", "b")]
    assert {" ".join(text.split()[:12]) for text in others} == heads
    assert not set(others) & set(texts)
    assert texts == [str(turn.said) for (turn,) in take(prompts, "chat")]


def test_several_prefixes_are_taken_in_turn() -> None:
    prompts = RandomPrompts(Lengths.fixed(30), shared=12, prefixes=3)
    heads = [" ".join(str(turn.said).split()[:12]) for (turn,) in take(prompts, "chat", count=6)]
    assert heads[:3] == heads[3:]
    assert len(set(heads)) == 3


def test_lengths_are_drawn_for_each_turn() -> None:
    prompts = RandomPrompts(parse_lengths("4-9"), parse_lengths("2-5"), shared=6, turns=parse_lengths("2-3"))
    assert prompts.multi_turn
    found = take(prompts, "chat", count=60)
    assert {len(conversation) for conversation in found} == {2, 3}
    first = {len(str(conversation[0].said).split()) for conversation in found}
    later = {len(str(turn.said).split()) for conversation in found for turn in conversation[1:]}
    assert first == {6, 7, 8, 9}  # none shorter than the prefix
    assert later == {4, 5, 6, 7, 8, 9}
    assert {turn.max_tokens for conversation in found for turn in conversation} == {2, 3, 4, 5}


def write(file: Path, *rows: Any) -> Path:
    file.write_text("\n".join(json.dumps(row) for row in rows))
    return file


HELLO = [{"role": "system", "content": "Be."}, {"role": "user", "content": "Hi"}]
BYE = [{"role": "assistant", "content": "Yes?"}, {"role": "user", "content": "Bye"}]
END = [{"role": "assistant", "content": "Bye."}]


def test_rows_of_every_kind_are_prompts(tmp_path: Path) -> None:
    sharegpt = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes?"}]
    rows = [{"prompt": "a", "max_tokens": 3}, {"prompt": HELLO}, {"messages": HELLO + BYE + END}]
    rows += [{"question": "b"}, {"text": "c"}, {"conversations": sharegpt}]
    found = read_prompts(write(tmp_path / "rows.jsonl", *rows))
    assert [turn.said for (turn,) in found] == ["a", HELLO, HELLO + BYE, "b", "c", [HELLO[1]]]
    assert [turn.max_tokens for (turn,) in found] == [3, 0, 0, 0, 0, 0]


def test_a_text_is_a_prompt_a_line(tmp_path: Path) -> None:
    file = tmp_path / "plain.txt"
    file.write_text("one\n\n two\n")
    assert read_prompts(file) == ((Turn("one", 0),), (Turn("two", 0),))


def test_turns_are_what_others_than_the_model_say(tmp_path: Path) -> None:
    (found,) = read_prompts(write(tmp_path / "rows.jsonl", {"messages": HELLO + BYE + END}), multi_turn=True)
    assert [turn.said for turn in found] == [HELLO, BYE[1:]]
    assert FilePrompts((found,)).multi_turn


def test_rows_come_again_and_lengths_are_filled_in() -> None:
    prompts = FilePrompts(((Turn("a", 3),), (Turn("b", 0),)), Lengths.fixed(5))
    found = list(islice(prompts.conversations(WORDS, "chat", ""), 3))
    assert found == [(Turn("a", 3),), (Turn("b", 5),), (Turn("a", 3),)]


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    empty = tmp_path / "plain.txt"
    empty.write_text("\n")
    with pytest.raises(UserError, match="no prompts"):
        read_prompts(empty)
    with pytest.raises(UserError, match=r"rows.jsonl:2: no `prompt`"):
        read_prompts(write(tmp_path / "rows.jsonl", {"prompt": "a"}, {"prompt": 3}))
