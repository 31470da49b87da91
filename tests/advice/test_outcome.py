"""Which road wins follows from quality, its intervals, and what so many requests cost."""

import math

import pytest

from intaglio.advice.outcome import Outcome, break_even, judge
from intaglio.advice.report import COLUMNS, curves, rows, sentence


def outcome(name: str, right: int, seconds: float, training: float = 0.0, index: float = 0.0) -> Outcome:
    """A road with so many of 100 answers right."""
    scores = [1.0] * right + [0.0] * (100 - right)
    return Outcome(name, scores, [""] * 100, [seconds] * 4, 10.0, 5.0, training, index)


PROMPT = outcome("prompt", 10, 0.1)
RAG = outcome("RAG", 80, 0.5, index=10)
LORA = outcome("LoRA", 82, 0.1, training=200)


def test_among_equals_the_cheapest_wins_and_requests_say_which() -> None:
    assert judge([PROMPT, RAG, LORA], 100).winner is RAG
    assert judge([PROMPT, RAG, LORA], 1000).winner is LORA
    assert judge([PROMPT, RAG, LORA], 100).enough == ["RAG", "LoRA"]


def test_what_is_shown_to_be_worse_is_not_good_enough() -> None:
    better = outcome("LoRA", 95, 0.1, training=1e6)
    verdict = judge([PROMPT, RAG, better], 100)
    assert verdict.winner is better is verdict.best
    assert verdict.enough == ["LoRA"]


def test_the_user_may_be_content_with_less() -> None:
    better = outcome("LoRA", 95, 0.1, training=1e6)
    assert judge([PROMPT, RAG, better], 100, good_enough=0.7).winner is RAG
    assert judge([PROMPT, RAG, better], 100, good_enough=0.79).winner is better  # 80 of 100 do not show 79 %
    assert judge([PROMPT, RAG, better], 100, good_enough=0.99).winner is better


def test_where_nothing_is_right_nobody_wins() -> None:
    none = judge([outcome("prompt", 0, 0.1), outcome("RAG", 0, 0.1)], 100)
    assert none.winner is None
    assert sentence(none, 100) == "no road has a single answer right"
    assert none.plain()["winner"] is None


def test_training_is_repaid_by_what_each_request_saves() -> None:
    assert break_even(LORA, RAG) == pytest.approx(190 / 0.4)
    assert math.isinf(break_even(RAG, PROMPT))
    assert break_even(PROMPT, RAG) == 0


def test_the_sentence_says_who_wins_and_by_how_much() -> None:
    said = sentence(judge([PROMPT, RAG, LORA], 100), 100)
    assert said.startswith(
        "winner: RAG, 80.0 % right [72.0, 88.0], cheaper for 100 requests than LoRA; LoRA is 2.0 points"
    )
    assert "the only one good enough" in sentence(judge([PROMPT, RAG], 100), 100)


def test_the_table_and_the_curves_have_every_road() -> None:
    table = [dict(zip(COLUMNS, row, strict=True)) for row in rows([PROMPT, RAG, LORA])]
    assert [row["road"] for row in table] == ["prompt", "RAG", "LoRA"]
    assert [row["break-even"] for row in table] == ["-", "-", "475"]
    hopeless = outcome("LoRA", 3, 0.1, training=200)
    assert rows([PROMPT, RAG, hopeless])[-1][-1] == "worse"
    assert (table[1]["index, s"], table[2]["training, s"]) == ("10", "200")
    panels = curves([PROMPT, RAG, LORA], 1000)
    assert panels["seconds in all"]["LoRA"][0] == pytest.approx((1, 200.1))
    requests, each = panels["seconds for each right answer"]["LoRA"][-1]
    assert (requests, each) == pytest.approx((2000, 400 / (2000 * 0.82)))
