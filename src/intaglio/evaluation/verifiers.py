"""Rewards that need no judge: whether an answer is right, and whether it has the form that was asked for.

A reward function of the user's own has the same shape as these:

    def reward(prompts, completions, **columns) -> list[float | None]

`prompts` as the rows have them (texts, or lists of messages), `completions` always texts, and every other key of the
rows as a list. None: this one cannot be scored.
"""

import importlib.util
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from intaglio.errors import UserError
from intaglio.evaluation.extraction import last_number

__all__ = ["VERIFIERS", "Verifier", "arithmetic", "matches", "verifier_of"]

Said = str | Sequence[Mapping[str, Any]]


def arithmetic(completions: Sequence[str], answer: Sequence[Any], **columns: Any) -> list[float | None]:
    """1 where the last number of the completion is that of the row's `answer`, else 0; None where that has none."""
    wanted = [last_number(str(one)) for one in answer]
    found = [last_number(text) for text in completions]
    return [None if right is None else float(made == right) for right, made in zip(wanted, found, strict=True)]


def matches(pattern: str) -> Callable[..., list[float | None]]:
    """A reward: 1 where the whole completion, without white space around it, has this form (a regular expression)."""
    form = re.compile(pattern, re.DOTALL)

    def reward(completions: Sequence[str], **columns: Any) -> list[float | None]:
        return [float(form.fullmatch(text.strip()) is not None) for text in completions]

    return reward


VERIFIERS: dict[str, Callable[..., list[float | None]]] = {"arithmetic": arithmetic}
"""Those that are called by name."""


class Verifier:
    """A reward function, called with the keywords that it takes, all of them if it takes any.

    Args:
        name: for people.
        function: see above for its shape.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function
        parameters = inspect.signature(function).parameters.values()
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._takes = {p.name for p in parameters}

    def __call__(
        self, prompts: Sequence[Said], completions: Sequence[str], rows: Sequence[Mapping[str, Any]]
    ) -> list[float]:
        """A number for each completion; NaN where there is none.

        Args:
            prompts, completions: (n,).
            rows: (n,) the other keys of each row.

        Raises:
            UserError: it wants what the rows do not have, fails, or does not give a number for each answer.
        """
        try:
            found = self.function(**self._given(prompts, completions, rows))
        except Exception as error:
            what = f"the reward function fails: {type(error).__name__}: {error}"
            mend = "it is given prompts, completions and the rows' keys"
            raise UserError(what, where=self.name, mend=mend) from error
        if not isinstance(found, Sequence) or len(found) != len(completions):
            raise UserError(f"the reward function gives no list of {len(completions)} numbers", where=self.name)
        return [self._number(one) for one in found]

    def _given(
        self, prompts: Sequence[Said], completions: Sequence[str], rows: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        keys = sorted({key for row in rows for key in row})
        values: dict[str, Any] = {key: [row.get(key) for row in rows] for key in keys}
        values |= {"prompts": list(prompts), "completions": list(completions)}
        return values if self._takes_all else {key: value for key, value in values.items() if key in self._takes}

    def _number(self, value: Any) -> float:
        if value is None:
            return math.nan
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise UserError(f"the reward function gives {value!r}, no number", where=self.name) from error


def verifier_of(place: str) -> Verifier:
    """One of `VERIFIERS` by its name, or the function of `FILE.py:function`, whose code is run.

    Raises:
        UserError: no such function or file, or the file does not run.
    """
    if place in VERIFIERS:
        return Verifier(place, VERIFIERS[place])
    file, colon, name = place.rpartition(":")
    if not colon or not file.endswith(".py"):
        known = ", ".join(VERIFIERS)
        raise UserError(f"no reward function {place!r}", where="rewards", mend=f"take {known}, or FILE.py:function")
    if not Path(file).is_file():
        raise UserError("no such file", where=f"rewards: {file}", mend="give its path from where you are")
    functions = _executed(Path(file))
    if not callable(functions.get(name)):
        raise UserError(f"defines no function {name}", where=f"rewards: {file}")
    return Verifier(name, functions[name])


def _executed(file: Path) -> Mapping[str, Any]:
    """What a Python file defines."""
    spec = importlib.util.spec_from_file_location(f"rewards_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"does not run: {type(error).__name__}: {error}", where=f"rewards: {file}") from error
    return vars(module)
