"""Where a continuation begins: as lm-eval says, with blanks, borders inside a token, and no context at all."""

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.subjects.spans import Span, encode_pair, encoder_of, first_token
from intaglio.text.tokenizer import Tokenizer, add_border_tokens
from toy_llms import toy_tokenizer
from toy_tokenizers import byte_level


def pair(context: str, continuation: str, tokenizer: Tokenizer | None = None) -> tuple[list[int], list[int]]:
    """The tokens of both sides."""
    tokenizer = tokenizer or toy_tokenizer()
    span = encode_pair(encoder_of(tokenizer), first_token(tokenizer), context, continuation)
    return span.ids[: span.start], span.ids[span.start :]


def with_bos() -> Tokenizer:
    """One that puts a BOS in front."""
    backend = byte_level()
    add_border_tokens(backend, bos="<|im_start|>")
    return Tokenizer(backend, {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})


@pytest.mark.parametrize(
    ("context", "continuation", "moved"),
    [("Q: a\nA:", " the", ("Q: a\nA:", " the")), ("A: ", "the", ("A:", " the")), ("A:\n\n", "x", ("A:", "\n\nx"))],
)
def test_blanks_at_the_end_of_the_context_go_to_the_continuation(
    context: str, continuation: str, moved: tuple[str, str]
) -> None:
    tokenizer = toy_tokenizer()
    before, after = pair(context, continuation)
    assert before == tokenizer.encode(moved[0])
    assert before + after == tokenizer.encode("".join(moved))


def test_a_border_inside_a_token_gives_it_to_the_side_that_has_as_many_tokens_alone() -> None:
    tokenizer = toy_tokenizer()
    assert len(tokenizer.encode("x answe")) == len(tokenizer.encode("x answer"))
    before, after = pair("x answe", "r there")
    assert (before, after) == (tokenizer.encode("x answer"), tokenizer.encode(" there"))


@pytest.mark.parametrize("context", ["x assistan", "x assista"])
def test_a_continuation_has_a_token_at_least(context: str) -> None:
    whole = toy_tokenizer().encode("x assistant")
    assert pair(context, "x assistant".removeprefix(context)) == (whole[:-1], whole[-1:])


def test_without_a_context_stands_the_bos_or_else_the_eos() -> None:
    tokenizer = toy_tokenizer()
    for context in ("", " "):
        before, after = pair(context, "the")
        assert before == [tokenizer.bos_token_id]
        assert after == tokenizer.encode(context + "the")
    plain = Tokenizer(byte_level(), {"eos_token": "<|im_end|>"})
    assert pair("", "the", plain)[0] == [plain.eos_token_id]
    with pytest.raises(UserError, match="no BOS or EOS"):
        pair("", "the", Tokenizer(byte_level()))


def test_a_bos_stands_in_front_once() -> None:
    tokenizer = with_bos()
    assert pair("a", " b", tokenizer)[0] == tokenizer.encode("a")
    before, after = pair("<|im_start|>a", " b", tokenizer)
    assert before == tokenizer.encode("a")
    assert pair("", "<|im_start|>the", tokenizer) == ([1], tokenizer.encode("the")[1:])
    assert after == tokenizer.encode(" b", add_special_tokens=False)


def test_what_is_too_long_loses_its_beginning() -> None:
    assert Span([1, 2, 3, 4, 5], 3).last(4) == Span([2, 3, 4, 5], 2)
    assert Span([1, 2, 3, 4, 5], 2).last(3) == Span([3, 4, 5], 1)
    assert Span([1, 2], 1).last(9) == Span([1, 2], 1)
