"""Passages: within the limit, nothing lost, each beginning with the end of the one before."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from intaglio.retrieval.chunks import Block, _pieces, about_tokens, chunks_of


def test_about_tokens() -> None:
    assert about_tokens("hello world, foo_bar 中文字 internationalization") == 13
    assert about_tokens(" \n") == 0


@given(st.text(max_size=400), st.integers(1, 20))
def test_tearing_loses_nothing_and_keeps_within_the_limit(text: str, limit: int) -> None:
    pieces = list(_pieces(Block(text, 1, 1 + text.count("\n")), limit))
    assert "".join(piece.text for piece in pieces) == text
    assert all(about_tokens(piece.text) <= limit for piece in pieces)


def test_passages_stay_below_the_limit_and_overlap() -> None:
    text = " ".join(f"This is sentence number {i}." for i in range(60))
    passages = list(chunks_of("a.txt", [Block(text, 3, 3, "Title")], 64))
    assert len(passages) > 3
    assert all(about_tokens(passage.text) <= 64 for passage in passages)
    for before, after in pairwise(passages):
        assert after.text.split(".")[0] in before.text
    assert {passage.line for passage in passages} == {3}


def test_no_passage_reaches_over_a_heading_or_a_page() -> None:
    blocks = [Block("a", 1, 1, "One"), Block("b", 2, 2, "One"), Block("c", 3, 3, "Two"), Block("d", 4, 4, "Two", 2)]
    assert [passage.text for passage in chunks_of("f", blocks, 100)] == ["a\nb", "c", "d"]


def test_a_heading_with_nothing_below_goes_with_the_next() -> None:
    blocks = [Block("One", 1, 1, "One", is_heading=True), Block("Two", 2, 2, "One > Two", is_heading=True)]
    (passage,) = chunks_of("f", [*blocks, Block("text", 3, 3, "One > Two")], 100)
    assert (passage.text, passage.title, passage.line, passage.last_line) == ("One\nTwo\ntext", "One > Two", 1, 3)


def test_an_id_is_the_same_in_every_run_and_another_at_another_place() -> None:
    first, again, other = (next(chunks_of(f, [Block("x", 1, 1)], 10)).id for f in ("f", "f", "g"))
    assert first == again != other
