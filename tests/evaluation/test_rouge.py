"""ROUGE: the numbers of rouge-score 0.1.2 without stemmer, and characters of Chinese."""

import pytest

from intaglio.evaluation.rouge import rouge, rouge_words


@pytest.mark.parametrize(
    ("answer", "reference", "first", "second", "longest"),
    [
        ("The cat sat on the mat.", "A cat was sitting on the mat!", 0.615385, 0.363636, 0.615385),
        ("police killed the gunman", "police kill the gunman", 0.75, 0.333333, 0.75),
        ("the gunman kill police", "police kill the gunman", 1.0, 0.333333, 0.5),
        ("", "x", 0.0, 0.0, 0.0),
        ("x", "", 0.0, 0.0, 0.0),
        ("one_two three-four 5.6 don't", "one two three four 5 6 dont", 0.8, 0.769231, 0.8),
        ("a b c d e f g a b c", "a c e g b a c b d", 0.947368, 0.0, 0.631579),
        ("It's 1,234.50 USD", "it s 1 234 50 usd today", 0.923077, 0.909091, 0.923077),
        ("same words here", "same words here", 1.0, 1.0, 1.0),
        ("a a a b", "a b b b", 0.5, 0.333333, 0.5),
    ],
)
def test_the_numbers_of_rouge_score(answer: str, reference: str, first: float, second: float, longest: float) -> None:
    found = rouge(answer, [reference])
    assert found == pytest.approx({"rouge1": first, "rouge2": second, "rougeL": longest}, abs=1e-6)


def test_the_best_reference_counts_for_each() -> None:
    found = rouge("a b c", ["c b a", "a b"])
    assert found == pytest.approx({"rouge1": 1.0, "rouge2": 2 / 3, "rougeL": 0.8})
    assert rouge("a", []) == {"rouge1": 0.0, "rouge2": 0.0, "rougeL": 0.0}


def test_chinese_is_characters_and_other_alphabets_words() -> None:
    assert rouge_words("插入GPT-2模型，été!") == ["插", "入", "gpt", "2", "模", "型", "été"]
    assert rouge("巴黎是首都", ["首都是巴黎"])["rouge1"] == 1
    assert rouge("巴黎是首都", ["首都是巴黎"])["rougeL"] == pytest.approx(0.4)
