"""What was answered, taken out of a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intaglio.evaluation.extraction import extract_choice, extract_number, last_number


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        # case 43: the instruction is echoed
        ("format ANSWER: [LETTER] ... ANSWER: (C)", "C"),
        ("Answer with A, B, C or D. ANSWER: A/B/C/D\nANSWER: D", "D"),
        ("Reply in the form 'ANSWER: [A|B|C|D]'.", None),
        ("Answer: A or B", None),
        # case 44: the letter and its text
        ("B. Paris", "B"),
        ("B", "B"),
        ("(b)", "B"),
        ("b) Paris", "B"),
        ("**B**", "B"),
        ("**B. Paris**", "B"),
        ("B: Paris\n", "B"),
        ("The answer is B.", "B"),
        ("The correct answer is (c) because it is so", "C"),
        ("the answer is: option D", "D"),
        ("Answer: A because a dog", "A"),
        ("**Answer:** C", "C"),
        ("**Answer**: C", "C"),
        ("answer: c", "C"),
        ("Answer:\n\nC", "C"),
        ("Answer: C, a city in France", "C"),
        (r"so \boxed{D}", "D"),
        ("I would choose option B", "B"),
        ("The answer is B, not A", "B"),
        ("First I thought the answer is A. No: the answer is D.", "D"),
        ("So it must be C.", "C"),
        ("It cannot be (A), hence (C).", "C"),
        ("A. Rome\nB. Paris\nC. London\nD. Bonn\n\nB", "B"),
        ("(A) Rome (B) Paris (C) London (D) Bonn: (B)", "B"),
        ("答案：B", "B"),
        ("答案是（C）", "C"),
        ("正确答案为 D。", "D"),
        ("应选B", "B"),
        ("因此选择Ｃ选项", "C"),
        ("选A、B、C、D中的一个。答案:A", "A"),
        ("答案不是A", None),
        ("B选项是正确的。", "B"),
        ("Option A is wrong. Option B is correct, I think.", "B"),
        ("(C) is the right answer", "C"),
        ("A is not correct.", None),
        ("Vitamin Cis correct", None),
        # letters of words
        ("Answer: Because", None),
        ("The answer is a dog", None),
        ("A dog is an animal", None),
        ("Dogs and cats", None),
        ("It has vitamin C", None),
        ("Choose a letter", None),
        ("The answer is not A", None),
        ("Answer: E", None),
        ("A. Rome\nB. Paris\nC. London\nD. Bonn", None),
        ("", None),
    ],
)
def test_the_last_valid_letter_is_the_answer(text: str, letter: str | None) -> None:
    assert extract_choice(text, "ABCD") == letter


def test_only_letters_of_the_question_are_valid() -> None:
    assert extract_choice("Answer: J", "ABCDEFGHIJ") == "J"
    assert extract_choice("Answer: J", "ABCD") is None
    assert extract_choice("Answer: (2)", ("1", "2", "3")) == "2"
    assert extract_choice("The answer is I think so", "AB") is None


@given(st.text(), st.sampled_from(["AB", "ABCD", "ABCDEFGHIJ"]))
def test_any_text_gives_a_valid_letter_or_none(text: str, letters: str) -> None:
    assert extract_choice(text, letters) in {None, *letters}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("6 * 7 = 42\n#### 42", 42),
        ("#### 1,234.50 and 3 more", 1234.5),
        ("#### $18", 18),
        ("#### -3", -3),
        ("#### 1\nno, #### 2", 2),
        ("#### none, but 7", 7),
        ("5 then #### none", 5),
        ("It costs $1,000,000.", 1_000_000),
        ("5-3", 3),
        ("(−2)", -2),
        ("x = -2.5", -2.5),
        ("3/4", 0.75),
        ("1/0", None),
        ("none", None),
    ],
)
def test_the_number_behind_the_mark_or_the_last(text: str, number: float | None) -> None:
    assert extract_number(text) == number


def test_the_last_number_counts() -> None:
    assert last_number("#### 7 and 35 make 42.") == 42
    assert last_number("it is 1,234.5") == 1234.5
    assert last_number("-3") == -3
    assert last_number("1/0") is None
