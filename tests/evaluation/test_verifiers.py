"""Rewards that need no judge; those of a user's file are tested with the rewards of training."""

import math

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.verifiers import Verifier, arithmetic, matches, verifier_of


def test_arithmetic_is_right_or_wrong_or_has_nothing_to_say() -> None:
    completions = ["so 6 * 7 = 42", "41", "no idea", "42"]
    assert arithmetic(completions, ["42", 42, 42.0, None]) == [1.0, 0.0, 0.0, None]


def test_a_pattern_is_of_the_whole_answer() -> None:
    assert matches(r"<a>.*</a>")([" <a>1\n2</a>\n", "x <a>1</a>", ""]) == [1.0, 0.0, 0.0]


def test_a_function_is_given_what_it_takes() -> None:
    def longer(completions: list[str], least: list[int]) -> list[float | None]:
        return [None if few is None else float(len(one) > few) for one, few in zip(completions, least, strict=True)]

    found = Verifier("longer", longer)(["a", "b"], ["abc", "abc"], [{"least": 2, "other": 1}, {}])
    assert found[0] == 1
    assert math.isnan(found[1])


def test_named_ones_are_found_and_others_refused() -> None:
    assert verifier_of("arithmetic")(["?"], ["1,000"], [{"answer": 1000}]) == [1.0]
    with pytest.raises(UserError, match="no reward function 'sums'"):
        verifier_of("sums")
