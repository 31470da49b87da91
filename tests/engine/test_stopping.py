"""Stop rules: what ends a sequence, across token borders, and nothing shown that should not be."""

from collections.abc import Iterable
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.models import WordLevel

from intaglio.engine.sampling_params import SamplingParams
from intaglio.engine.stopping import Stopping, StopRules
from intaglio.text.tokenizer import Tokenizer
from toy_tokenizers import byte_level

BYTES = Tokenizer(byte_level(("<|endoftext|>", "<|im_end|>")))
EOS, TURN = 0, 1


def all_of(stopping: Stopping, ids: Iterable[int]) -> str:
    """Ids until the sequence is over; further ones are ignored."""
    return "".join([stopping.add(i) for i in ids if stopping.finish_reason is None])


def run(rules: StopRules, ids: list[int]) -> tuple[str, Stopping]:
    stopping = Stopping(rules, BYTES)
    return all_of(stopping, ids) + stopping.close(), stopping


@pytest.mark.parametrize("eos", [EOS, TURN])
def test_any_of_several_ids_stops(eos: int) -> None:
    text, stopping = run(StopRules(frozenset({EOS, TURN})), [*BYTES.encode("hi"), eos, *BYTES.encode("more")])
    assert (text, stopping.finish_reason, stopping.stopped_by) == ("hi", "stop", eos)
    assert stopping.num_tokens == len(BYTES.encode("hi")) + 1


def test_length_counts_tokens_and_shows_what_was_held() -> None:
    ids = BYTES.encode("xyz xyz")
    text, stopping = run(StopRules(strings=("yzz", "zz"), max_tokens=3), ids)
    assert (text, stopping.finish_reason, stopping.num_tokens) == ("xyz", "length", 3)
    text, stopping = run(StopRules(frozenset({EOS}), max_tokens=4), [*BYTES.encode("xyz"), EOS])
    assert (text, stopping.finish_reason) == ("xyz", "stop")


def test_a_stop_string_is_found_across_tokens_and_never_shown() -> None:
    stopping = Stopping(StopRules(strings=("\n\nUser:",)), BYTES)
    shown = [stopping.add(i) for i in BYTES.encode("ok\n\nUse")]
    assert "".join(shown) == "ok"
    assert stopping.add(BYTES.encode("x")[0]) == "\n\nUsex"
    rest = all_of(stopping, BYTES.encode("\n\nUser: no"))
    assert (rest, stopping.finish_reason, stopping.stopped_by) == ("", "stop", "\n\nUser:")


def test_a_stop_string_inside_one_token_cuts_it() -> None:
    vocab_token = BYTES.encode(" the")
    assert len(vocab_token) < 4
    text, stopping = run(StopRules(strings=("h",)), vocab_token)
    assert (text, stopping.stopped_by) == (" t", "h")


def test_the_stop_string_that_begins_first_wins() -> None:
    text, stopping = run(StopRules(strings=("cd", "bcde", "b")), BYTES.encode("abcde"))
    assert text == "a"
    assert stopping.stopped_by == "b"


def test_half_a_character_before_the_end_is_shown_at_the_end() -> None:
    text, stopping = run(StopRules(max_tokens=2), BYTES.encode("😀"))
    assert (text, stopping.finish_reason) == ("\ufffd", "length")


def test_min_tokens_disarms_ids_and_strings() -> None:
    rules = StopRules(frozenset({EOS}), ("x",), max_tokens=9, min_tokens=3)
    stopping = Stopping(rules, BYTES)
    ids = BYTES.encode("axb")
    assert len(ids) == 3
    assert all_of(stopping, ids) == "axb"
    assert stopping.finish_reason is None
    stopping.add(EOS)
    assert stopping.finish_reason == "stop"


def test_a_finished_sequence_takes_no_more() -> None:
    _, stopping = run(StopRules(max_tokens=1), BYTES.encode("ab"))
    assert stopping.num_tokens == 1
    with pytest.raises(AssertionError):
        stopping.add(5)


def test_rules_of_params() -> None:
    params = SamplingParams(stop=("a",), stop_token_ids=(7,), max_tokens=5, min_tokens=2)
    assert StopRules.of(params, {EOS, TURN}) == StopRules(frozenset({EOS, TURN, 7}), ("a",), 5, 2)
    assert StopRules.of(params, {EOS}, max_tokens=4).max_tokens == 4
    assert StopRules.of(SamplingParams(ignore_eos=True, stop_token_ids=(7,)), {EOS}).ids == {7}


class Scripted:
    """Token ids whose texts are said."""

    def __init__(self, *texts: str) -> None:
        backend = tokenizers.Tokenizer(WordLevel({text: i for i, text in enumerate(texts)}, unk_token=texts[0]))
        backend.decoder = tokenizers.decoders.Fuse()
        self.tokenizer = Tokenizer(backend)
        self.ids = list(range(len(texts)))

    def shown(self, **params: Any) -> tuple[list[str], Stopping]:
        stopping = Stopping.of(SamplingParams(**params), self.tokenizer)
        shown = [stopping.add(i) for i in self.ids if stopping.finish_reason is None]
        return [*shown, stopping.close()], stopping


def test_what_may_begin_a_stop_string_is_held_back_until_it_is_decided() -> None:  # case 03
    shown, stopping = Scripted("ab", "cd", "ef").shown(stop=["bcde"])
    assert (shown, stopping.finish_reason) == (["a", "", "", ""], "stop")
    shown, stopping = Scripted("ab", "cx").shown(stop=["bcde"])
    assert (shown, stopping.finish_reason) == (["a", "bcx", ""], "length")
    shown, stopping = Scripted("ab", "c").shown(stop=["bcde"], max_tokens=2)
    assert (shown, stopping.finish_reason) == (["a", "bc", ""], "length")


def test_a_stop_string_inside_one_token_ends_the_text_there() -> None:  # case 04
    shown, stopping = Scripted("sunset", "x").shown(stop=["uns"])
    assert ("".join(shown), stopping.finish_reason, stopping.stopped_by) == ("s", "stop", "uns")


def test_what_ended_the_text_is_shown_where_that_is_asked_for() -> None:
    script = Scripted("ab", "cd", "ef", "<end>")
    shown, _ = script.shown(stop=["de"], include_stop_str_in_output=True)
    assert shown == ["ab", "c", "de", ""]
    shown, stopping = script.shown(stop_token_ids=[2], include_stop_str_in_output=True)
    assert ("".join(shown), stopping.stopped_by) == ("abcdef", 2)
    assert "".join(script.shown(stop_token_ids=[2])[0]) == "abcd"


def test_special_tokens_are_shown_where_that_is_asked_for() -> None:
    ids = [*BYTES.encode("a"), TURN, *BYTES.encode("b")]
    assert all_of(Stopping.of(SamplingParams(), BYTES), ids) == "ab"
    assert all_of(Stopping.of(SamplingParams(skip_special_tokens=False), BYTES), ids) == "a<|im_end|>b"
    shown = SamplingParams(stop_token_ids=[TURN], include_stop_str_in_output=True, skip_special_tokens=False)
    assert all_of(Stopping.of(shown, BYTES), ids) == "a<|im_end|>"


def test_without_eos_only_the_length_and_the_users_own_ids_end_a_text() -> None:  # case 32
    ids = [*BYTES.encode("a"), EOS, *BYTES.encode("bcdefg")]
    tokenizer = Tokenizer(byte_level(("<|endoftext|>", "<|im_end|>")), eos_token_ids={EOS, TURN})
    stopping = Stopping.of(SamplingParams(ignore_eos=True, max_tokens=6), tokenizer)
    all_of(stopping, ids)
    assert (stopping.num_tokens, stopping.finish_reason) == (6, "length")
    stopping = Stopping.of(SamplingParams(ignore_eos=True, stop_token_ids=[ids[3]]), tokenizer)
    all_of(stopping, ids)
    assert (stopping.num_tokens, stopping.finish_reason, stopping.stopped_by) == (4, "stop", ids[3])
    stopping = Stopping.of(SamplingParams(), tokenizer)
    all_of(stopping, ids)
    assert stopping.num_tokens == 2


def test_min_tokens_counts_what_was_made_and_not_the_prompt() -> None:  # case 32
    tokenizer = Tokenizer(byte_level(("<|endoftext|>", "<|im_end|>")), eos_token_ids={EOS})
    stopping = Stopping.of(SamplingParams(min_tokens=2), tokenizer, prompt=BYTES.encode("a long prompt"))
    assert all_of(stopping, [EOS, EOS]) == ""
    assert stopping.finish_reason is None
    stopping.add(EOS)
    assert stopping.finish_reason == "stop"


def test_half_a_character_of_the_prompt_is_completed_and_the_prompt_is_not_shown() -> None:  # case 01
    *begun, last = BYTES.encode("hi中")
    stopping = Stopping.of(SamplingParams(stop=["hi"]), BYTES, prompt=begun)
    assert [stopping.add(last), all_of(stopping, BYTES.encode("!"))] == ["中", "!"]


def test_a_sequence_may_be_closed_for_a_reason() -> None:
    stopping = Stopping.of(SamplingParams(stop=["bx"]), BYTES)
    assert all_of(stopping, BYTES.encode("ab")) == "a"
    assert stopping.close("stop") == "b"
    assert stopping.finish_reason == "stop"
    assert stopping.close("abort") == ""


@settings(max_examples=200)
@given(
    text=st.text(st.sampled_from("abé😀"), max_size=20),
    strings=st.lists(st.text(st.sampled_from("abé😀"), min_size=1, max_size=4), max_size=3),
)
def test_what_is_shown_is_the_text_before_the_first_stop_string(text: str, strings: list[str]) -> None:
    shown, stopping = run(StopRules(strings=tuple(strings)), BYTES.encode(text))
    # found token by token, a string that is whole earlier may win over one that begins earlier
    ends = [text.find(s) + len(s) for s in strings if s in text]
    assert (stopping.finish_reason == "stop") == bool(ends)
    if not ends:
        assert shown == text
    else:
        assert text.startswith(shown)
        assert isinstance(stopping.stopped_by, str)
        assert text[len(shown) :].startswith(stopping.stopped_by)
        assert not any(s in shown for s in strings)
