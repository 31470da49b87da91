"""What a sequence remembers for the sampler: which tokens may not come next, and why it may have to end."""

from typing import Any

import pytest

from intaglio.engine.chooser import Chooser
from intaglio.engine.sampling_params import SamplingParams, Structured
from intaglio.errors import UserError
from intaglio.text.tokenizer import Tokenizer
from toy_tokenizers import byte_level

EOS, TURN = 0, 2
TOKENIZER = Tokenizer(byte_level(), eos_token_ids={EOS, TURN})
V = TOKENIZER.vocab_size


def chooser(vocab: int = V, context: tuple[int, ...] = (), **params: Any) -> Chooser:
    return Chooser(SamplingParams(**{"temperature": 0, **params}), TOKENIZER, vocab, context)


def banned_behind(one: Chooser, text: str) -> set[int]:
    for token_id in TOKENIZER.encode(text):
        one.take(token_id)
    return set(one.banned)


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def test_nothing_that_changes_a_choice_is_taken_for_plain() -> None:
    assert chooser().plain
    assert chooser(logprobs=3, stop=["a"], stop_token_ids=[5], max_tokens=2).plain
    changes: list[dict[str, Any]] = [
        {"temperature": 1},
        {"repetition_penalty": 1.1},
        {"presence_penalty": -1},
        {"frequency_penalty": 0.1},
        {"logit_bias": {3: 1}},
        {"bad_words": ["a"]},
        {"allowed_token_ids": [1]},
        {"structured": Structured(kind="regex", value="a")},
        {"forbidden_token_ids": [1]},
        {"min_tokens": 1},
    ]
    for change in changes:
        assert not chooser(**change).plain, change


def test_before_min_tokens_no_id_may_end_the_text() -> None:  # case 32
    one = chooser(min_tokens=2, stop_token_ids=[9, -1, V + 5], context=tuple(range(50)))
    assert set(one.banned) == {EOS, TURN, 9}  # neither the last token, which -1 would be, nor any beyond
    one.take(60)
    assert set(one.banned) == {EOS, TURN, 9}
    one.take(61)
    assert not one.banned
    assert one.plain


def test_where_eos_is_ignored_only_the_users_own_ids_are_too_early() -> None:  # case 32
    assert set(chooser(min_tokens=2, ignore_eos=True, stop_token_ids=[9]).banned) == {9}


def test_the_last_token_of_a_bad_word_is_banned_once_the_others_are_made() -> None:
    word = ids("xyz")
    assert len(word) == 3
    assert word[-1] not in banned_behind(chooser(bad_words=["xyz"]), "x")
    assert banned_behind(chooser(bad_words=["xyz"]), "axy") == {word[-1]}
    assert banned_behind(chooser(bad_words=["xyz"]), "a xy") == {word[-1]}
    assert not banned_behind(chooser(bad_words=["xyz"]), "xqy")
    assert not banned_behind(chooser(bad_words=["xyz"]), "xyq")
    assert not chooser(bad_words=["xyz"], context=tuple(ids("xy"))).banned  # the prompt's words are not the model's


def test_a_bad_word_of_one_token_is_banned_always_with_its_space_too() -> None:
    alone, spaced = ids("the"), ids(" the")
    assert len(spaced) == 1
    banned = banned_behind(chooser(bad_words=["the"]), "q")
    assert spaced[0] in banned
    assert alone[-1] in banned or len(alone) > 1


def test_forbidden_tokens_are_banned_for_ever() -> None:
    assert banned_behind(chooser(forbidden_token_ids=(4, V, -1)), "abc") == {4}
    with pytest.raises(UserError, match="every token is forbidden"):
        chooser(vocab=3, forbidden_token_ids=(0, 1, 2))


def test_a_ban_gives_way_where_it_would_leave_nothing() -> None:
    one = chooser(allowed_token_ids=[EOS, 5], min_tokens=1)
    assert one.may_be is not None
    assert one.may_be.nonzero()[0].tolist() == [5]
    one = chooser(allowed_token_ids=[EOS], min_tokens=1)
    assert one.may_be is not None
    assert one.may_be.nonzero()[0].tolist() == [EOS]


def test_tokens_beyond_the_models_vocabulary_are_named() -> None:
    with pytest.raises(UserError, match=f"logit_bias: token {V} is beyond the model's vocabulary of {V}"):
        chooser(logit_bias={1: 1, V: 1})
    with pytest.raises(UserError, match="allowed_token_ids: token 50 is beyond"):
        chooser(vocab=50, allowed_token_ids=[50])
    one = chooser(vocab=50, repetition_penalty=2, context=(49, 50, 300))
    one.take(299)
    assert one.occurred is not None
    assert one.occurred.ids.tolist() == [49]


def test_a_text_whose_shape_is_whole_is_over() -> None:
    one = chooser(structured=Structured(kind="regex", value="ab?"))
    assert not one.over
    for text, over in (("a", False), ("b", True)):
        assert one.may_be is not None
        assert one.may_be[ids(text)[0]]
        one.take(ids(text)[0])
        assert one.over is over
