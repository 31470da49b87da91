"""Rows that compare answers, from one format to another.

| from | to | becomes |
|---|---|---|
| preference | preference | the same with its prompt written out |
| preference | unpaired | two rows, the wanted answer first |
| preference | ranked | the same as a ranking of two |
| ranked | preference | a row for each pair, with its weight |
| unpaired | preference | of each prompt every wanted answer with every unwanted one; their weights sum to 1 |

Of the keys that belong to no format a pair of judged answers keeps those in which both rows agree.
"""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from intaglio.data.formats import COMPARED, KEYS, Format
from intaglio.data.preferences import Judged, Preference, answers_of, judged_of, preferences_of
from intaglio.data.readers import Row, Skipped

__all__ = ["LossError", "expanded", "paired"]


class LossError(Exception):
    """What would be lost."""


def expanded(row: Row, format: Format, to: Format) -> Iterator[dict[str, Any]]:
    """The rows that one row becomes, without the keys of no format.

    Raises:
        UserError: the row is malformed.
        LossError: it would lose something.
    """
    if to is Format.PREFERENCE and format in (Format.PREFERENCE, Format.RANKED):
        yield from map(_pair, preferences_of(row))
    elif (format, to) == (Format.PREFERENCE, Format.UNPAIRED):
        yield from _judgements(preferences_of(row)[0])
    elif (format, to) == (Format.PREFERENCE, Format.RANKED):
        yield _ranking(preferences_of(row)[0])
    elif format is to:
        answers_of(row)  # complains of what is malformed
        assert isinstance(row.value, dict)
        yield {key: row.value[key] for key in itertools.chain(*KEYS[format]) if key in row.value}
    else:
        raise LossError(_lost(format, to))


def paired(rows: Iterable[Row], left_out: list[Skipped]) -> Iterator[dict[str, Any]]:
    """The pairs that judged answers to one prompt make, in the order in which the prompts come.

    Args:
        rows: judged answers.
        left_out: gets those to whose prompt none was judged otherwise.

    Raises:
        UserError: a row is malformed.
    """
    prompts: dict[str, list[tuple[Judged, Row]]] = {}
    for row in rows:
        judged = judged_of(row)
        prompts.setdefault(_key(judged), []).append((judged, row))
    for answers in prompts.values():
        sides = [[pair for pair in answers if pair[0].label is label] for label in (True, False)]
        if not all(sides):
            reason = "none of the answers to its prompt was judged otherwise"
            left_out.extend(Skipped(row.where, reason) for _, row in answers)
        for (chosen, one), (rejected, other) in product(*sides):
            pair = Preference("", chosen.prompt, chosen.completion, rejected.completion, chosen.tools)
            yield _pair(replace(pair, weight=1 / (len(sides[0]) * len(sides[1])))) | _agreed(one, other)


def _pair(pair: Preference) -> dict[str, Any]:
    numbers = {"margin": pair.margin, "weight": None if pair.weight == 1 else pair.weight}
    return _row(pair, {"chosen": pair.chosen, "rejected": pair.rejected, **numbers})


def _judgements(pair: Preference) -> Iterator[dict[str, Any]]:
    _only_order(pair)
    for completion, label in ((pair.chosen, True), (pair.rejected, False)):
        yield _row(pair, {"completion": completion, "label": label})


def _ranking(pair: Preference) -> dict[str, Any]:
    _only_order(pair)
    return _row(pair, {"answers": [_listed(pair.chosen), _listed(pair.rejected)]})


def _only_order(pair: Preference) -> None:
    if pair.margin is not None or pair.weight != 1:
        raise LossError(f"there is no place for a {'weight' if pair.margin is None else 'margin'}")


def _row(pair: Preference, rest: Mapping[str, Any]) -> dict[str, Any]:
    row = {"prompt": pair.prompt, **rest, "tools": pair.tools}
    return {key: _listed(value) for key, value in row.items() if value is not None}


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _key(judged: Judged) -> str:
    return json.dumps([judged.prompt, judged.tools], sort_keys=True, ensure_ascii=False)


def _agreed(one: Row, other: Row) -> dict[str, Any]:
    """The keys of no format in which both rows agree."""
    assert isinstance(one.value, dict)
    assert isinstance(other.value, dict)
    own = set(itertools.chain(*KEYS[Format.UNPAIRED], *KEYS[Format.PREFERENCE]))
    return {key: value for key, value in one.value.items() if key not in own and other.value.get(key) == value}


def _lost(format: Format, to: Format) -> str:
    match format, to:
        case Format.PROMPT, _:
            return "it has no answer"
        case _, Format.PROMPT:
            return "its answers"
        case Format.UNPAIRED, _:
            return "whether the answer was wanted"
        case _, Format.UNPAIRED:
            return "nothing says whether the answer was wanted"
        case _ if format in COMPARED:
            return "which answer is the better one"
        case _:
            return "there is no second answer"
