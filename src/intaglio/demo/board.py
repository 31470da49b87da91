"""The leaderboard of this machine: every demo that was ended, a line each; the best so far is what is to be beaten."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from intaglio.demo.stage import Found, Score, Stage
from intaglio.files import home, read_json_lines, write_json_lines

__all__ = ["Row", "add", "board_file", "rows"]

Row = dict[str, Any]
"""A stage in the final table: name, what, value, beat, of (whose number that is), beaten, form, seconds."""

BOARD: Final = "leaderboard.jsonl"


def board_file() -> Path:
    """Where this machine's demos stand, outside of any one's folder."""
    return home() / BOARD


def rows(stages: Sequence[Stage], found: Mapping[str, Found], quick: bool, before: Path) -> list[Row]:
    """The final table.

    Args:
        stages: in order.
        found: what came of each.
        quick: of which size the demo was; only demos of the same size are compared.
        before: the leaderboard's file.
    """
    demos = [demo for demo in _read(before) if demo["quick"] == quick]
    return [_row(stage, found[stage.name], demos) for stage in stages]


def add(path: Path, table: Iterable[Row], quick: bool) -> None:
    """Appends a demo to the leaderboard."""
    demo = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "quick": quick,
        "scores": {row["name"]: row["value"] for row in table},
        "seconds": {row["name"]: row["seconds"] for row in table},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json_lines(path, [*_read(path), demo])


def _row(stage: Stage, found: Found, demos: Sequence[Mapping[str, Any]]) -> Row:
    score = stage.score
    value = score.of(found)
    beat, whose = _to_beat(stage.name, score, found, demos)
    return {
        "name": stage.name,
        "what": score.what,
        "value": value,
        "beat": beat,
        "of": whose,
        "beaten": None if beat is None else score.better(value, beat),
        "form": score.form,
        "seconds": found["seconds"],
    }


def _to_beat(name: str, score: Score, found: Found, demos: Sequence[Mapping[str, Any]]) -> tuple[float | None, str]:
    """The best of the demos before; where there is none, the yardstick."""
    known = [demo["scores"][name] for demo in demos if name in demo["scores"]]
    if known:
        return (max if score.best == "most" else min)(known), f"best of {len(known)} before"
    return score.yardstick(found) if score.yardstick else (None, "the first")


def _read(path: Path) -> list[dict[str, Any]]:
    return read_json_lines(path) if path.exists() else []
