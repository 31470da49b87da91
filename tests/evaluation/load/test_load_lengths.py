"""Lengths of prompts and answers, as they are said and as they are drawn."""

import random
from pathlib import Path
from statistics import mean, stdev

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.load.lengths import Lengths, parse_lengths


def drawn(lengths: Lengths) -> list[int]:
    dice = random.Random(0)
    return [lengths.draw(dice) for _ in range(2000)]


def test_one_number_is_always_that() -> None:
    assert set(drawn(parse_lengths("128"))) == {128}


def test_a_range_has_its_ends_and_all_between() -> None:
    lengths = parse_lengths("3-6")
    assert set(drawn(lengths)) == {3, 4, 5, 6}
    assert lengths.least == 3


def test_a_bell_curve_has_its_mean_and_deviation() -> None:
    found = drawn(parse_lengths("normal:100:10"))
    assert mean(found) == pytest.approx(100, abs=1)
    assert stdev(found) == pytest.approx(10, abs=0.7)
    assert min(drawn(parse_lengths("normal:2:10"))) == 1


def test_a_files_lengths_are_drawn(tmp_path: Path) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text("5\n9\n9\n9\n")
    found = drawn(parse_lengths(f"@{file}"))
    assert set(found) == {5, 9}
    assert found.count(9) / len(found) == pytest.approx(0.75, abs=0.04)


@pytest.mark.parametrize("text", ["", "0", "x", "9-3", "1-2-3", "normal:5", "normal:0:1", "normal:5:-1", "3normal:5:1"])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"--input-tokens: .* is no length"):
        parse_lengths(text, "--input-tokens")


@pytest.mark.parametrize(
    ("content", "what"), [("", "no lengths"), ("1\n0\n", "below 1"), ("1\nx\n", "no whole number")]
)
def test_a_file_without_lengths_is_refused(tmp_path: Path, content: str, what: str) -> None:
    file = tmp_path / "lengths.txt"
    file.write_text(content)
    with pytest.raises(UserError, match=what):
        parse_lengths(f"@{file}")
