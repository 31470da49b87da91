"""Metrics against cases worked out by hand."""

import math

import pytest

from intaglio.evaluation.metrics import bits_per_byte, exact_match, f1, normalise


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        ("  Paris.\n", "paris"),
        ("STRASSE", "strasse"),
        ("straße", "strasse"),
        ("the\n quick  fox", "the quick fox"),
        ('"(42)"', "42"),
        ("-3", "-3"),
        ("$-3.50!", "-3.50"),
        ("well-known", "well-known"),
        ("3.14", "3.14"),
        ("北京。", "北京"),
        (" ... ", ""),
    ],
)
def test_what_an_answer_is_compared_as(answer: str, plain: str) -> None:
    assert normalise(answer) == plain
    assert normalise(plain) == plain


def test_exact_match_is_equality_after_normalising() -> None:
    matches = exact_match(["Paris.", "paris, France", "blue", "", "-3"], ["paris", "paris", ["red", "Blue"], "", "3"])
    assert matches.tolist() == [True, False, True, False, False]


def test_a_uniform_byte_costs_eight_bits() -> None:
    assert bits_per_byte(nats=10 * math.log(256), num_bytes=10) == pytest.approx(8)


def test_f1_is_of_words_and_against_the_nearest_reference() -> None:
    assert f1("The deque.", ["a list", "deque"]) == pytest.approx(2 / 3)
    assert f1("one one two", ["one two two"]) == pytest.approx(2 / 3)
    assert f1("", ["x"]) == 0
    assert f1("x", []) == 0
