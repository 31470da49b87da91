"""Stop rules: what ends a sequence, across token borders, and nothing shown that should not be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.engine.sampling_params import SamplingParams
from intaglio.engine.stopping import Stopping, StopRules
from intaglio.text.tokenizer import Tokenizer
from toy_tokenizers import byte_level

BYTES = Tokenizer(byte_level(("<|endoftext|>", "<|im_end|>")))
EOS, TURN = 0, 1


def run(rules: StopRules, ids: list[int]) -> tuple[str, Stopping]:
    stopping = Stopping(rules, BYTES)
    return stopping.add_all(ids) + stopping.close(), stopping


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
    rest = stopping.add_all(BYTES.encode("\n\nUser: no"))
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
    assert stopping.forbidden_ids == {EOS}
    assert stopping.add_all(ids) == "axb"
    assert stopping.finish_reason is None
    assert stopping.forbidden_ids == frozenset()
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
    assert StopRules.of(SamplingParams(ignore_eos=True, stop_token_ids=(7,)), {EOS}).ids == {7}


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
