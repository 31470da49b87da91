"""Rewards that need no judge: whether an answer is right, and whether it has the form that was asked for.

A reward function of the user's own has the same shape as these:

    def reward(prompts, completions, **columns) -> list[float | None]

`prompts` as the rows have them (texts, or lists of messages), `completions` always texts, and every other key of the
rows as a list. None: this one cannot be scored.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["VERIFIERS", "arithmetic", "last_number", "matches"]

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?")


def arithmetic(completions: Sequence[str], answer: Sequence[Any], **columns: Any) -> list[float | None]:
    """1 where the last number of the completion is that of the row's `answer`, else 0; None where that has none."""
    wanted = [last_number(str(one)) for one in answer]
    found = [last_number(text) for text in completions]
    return [None if right is None else float(made == right) for right, made in zip(wanted, found, strict=True)]


def last_number(text: str) -> float | None:
    """The last number of a text (`-3`, `1,234.5`, `3/4`), or None."""
    numbers = _NUMBER.findall(text)
    if not numbers:
        return None
    above, _, below = numbers[-1].replace(",", "").partition("/")
    if below and not float(below):
        return None
    return float(above) / (float(below) if below else 1.0)


def matches(pattern: str) -> Callable[..., list[float | None]]:
    """A reward: 1 where the whole completion, without white space around it, has this form (a regular expression)."""
    form = re.compile(pattern, re.DOTALL)

    def reward(completions: Sequence[str], **columns: Any) -> list[float | None]:
        return [float(form.fullmatch(text.strip()) is not None) for text in completions]

    return reward


VERIFIERS: dict[str, Callable[..., list[float | None]]] = {"arithmetic": arithmetic}
"""Those that a recipe calls by name."""
