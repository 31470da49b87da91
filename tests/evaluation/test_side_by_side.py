"""Answers side by side: every prompt and every answer is there, in lines and in a table."""

from intaglio.evaluation.side_by_side import as_lines, as_markdown, one_line

PROMPTS = ["about rain:\n", "a | b"]
ANSWERS = {"start": ["it rains", ""], "policy": ["rain\nagain", "c | d"]}


def test_lines_show_who_said_what() -> None:
    assert as_lines(PROMPTS, ANSWERS) == [
        "about rain:",
        "  start   it rains",
        "  policy  rain / again",
        "a | b",
        "  start   (nothing)",
        "  policy  c | d",
    ]


def test_long_texts_are_cut_to_the_width() -> None:
    assert one_line("word " * 50, 20) == "word word word ..."
    assert max(map(len, as_lines(["word " * 50], {"m": ["word " * 50]}, 40))) <= 40


def test_a_table_has_a_column_for_each_and_breaks_in_no_cell() -> None:
    assert as_markdown(PROMPTS, ANSWERS).splitlines() == [
        "| prompt | start | policy |",
        "| --- | --- | --- |",
        "| about rain: | it rains | rain<br>again |",
        "| a \\| b |   | c \\| d |",
    ]
