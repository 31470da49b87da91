"""What makes a page's command small: the arguments that are put behind it when a test runs it."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from intaglio.training.changes import apply_change

__all__ = ["more_arguments"]

_RECIPE: Final[dict[str, object]] = {
    "steps": 2,
    "validation": 0.25,
    "micro_batch": 2,
    "accumulation": 1,
    "sample_tokens": 4,
    "threads": 1,
    "schedule.warmup": 0,
    "tokenizer.vocab_size": 300,
    "answers.rows": 2,
    "pairs.rows": 2,
    "tasks.limit": 2,
    "compare.rows": 2,
    "compare.shown": 1,
    "objective.max_completion_length": 6,
    "objective.num_generations": 2,
    "report.rows": 2,
    "report.samples": 1,
    "report.max_tokens": 4,
}
"""Values of a recipe that are lowered where it has the key; these keys stand in every recipe:"""
_ALWAYS: Final = ("steps", "micro_batch", "validation", "threads")

_OTHERS: Final = {
    "intaglio load": "--requests 4 --input-tokens 8 --output-tokens 4",
    "intaglio data rank": "--max-tokens 4",
}
"""Beginnings of commands, and what is put behind them."""


def more_arguments(words: list[str]) -> list[str]:
    """What is put behind the command `words`, which is `intaglio ...`."""
    if words[1:2] == ["train"]:
        return _training(words[2:])
    if words[1:2] == ["eval"] and "--tasks" in words:
        return ["--limit", "4"]
    line = " ".join(words)
    return [word for start, more in _OTHERS.items() if line.startswith(start) for word in shlex.split(more)]


def _training(words: list[str]) -> list[str]:
    recipes = [word for word in words if word.endswith((".yaml", ".yml")) and "=" not in word]
    if not recipes:
        return []
    fields = yaml.safe_load(Path(recipes[0]).read_text(encoding="utf-8"))
    for change in (word for word in words if "=" in word and not word.startswith(("-", "out="))):
        _apply(fields, change)
    stages = fields.get("stages")
    if not stages:
        return [*_lowered(fields, always=True)]
    shared = [*_lowered({key: value for key, value in fields.items() if key != "stages"})]
    return shared + [f"{name}.{change}" for name, stage in stages.items() for change in _lowered(stage, always=True)]


def _apply(fields: dict[str, Any], change: str) -> None:
    stage, dot, rest = change.partition(".")
    inner = fields.get("stages", {}).get(stage)
    apply_change(inner if dot and inner is not None else fields, rest if dot and inner is not None else change)


def _lowered(fields: dict[str, Any], *, always: bool = False) -> Iterator[str]:
    for key, value in _RECIPE.items():
        first, _, second = key.partition(".")
        holder = fields.get(first)
        there = second in holder if second and isinstance(holder, dict) else not second and first in fields
        if there or (always and key in _ALWAYS):
            yield f"{key}={value}"
    if always and fields.get("epochs") is not None:
        yield "epochs=null"
