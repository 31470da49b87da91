"""Answers of several models to the same prompts, laid side by side for people."""

import textwrap
from collections.abc import Mapping, Sequence

__all__ = ["as_lines", "as_markdown", "one_line"]


def as_lines(prompts: Sequence[str], answers: Mapping[str, Sequence[str]], width: int = 78) -> list[str]:
    """For a terminal: each prompt, and below it what every model said.

    Args:
        prompts: (n,).
        answers: name of a model -> (n,).
        width: of a line.
    """
    longest = max(map(len, answers), default=0)
    lines = []
    for row, prompt in enumerate(prompts):
        lines.append(one_line(prompt, width))
        for name, texts in answers.items():
            lines.append(f"  {name:{longest}}  {one_line(texts[row], width - longest - 4)}")
    return lines


def as_markdown(prompts: Sequence[str], answers: Mapping[str, Sequence[str]]) -> str:
    """The same as a table, a column for each model."""
    rows = [["prompt", *answers], ["---"] * (len(answers) + 1)]
    rows += [[_cell(prompt), *(_cell(texts[row]) for texts in answers.values())] for row, prompt in enumerate(prompts)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def one_line(text: str, width: int) -> str:
    """The text in one line, its breaks made visible, its end cut where it is too long."""
    joined = text.strip().replace("\n", " / ")
    return textwrap.shorten(joined, max(width, 10), placeholder=" ...") if joined else "(nothing)"


def _cell(text: str) -> str:
    return text.strip().replace("|", "\\|").replace("\n", "<br>") or " "
