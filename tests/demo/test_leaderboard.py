"""The leaderboard: what is to be beaten, and that it is kept."""

from pathlib import Path
from typing import Any

import pytest

from intaglio.demo import board
from intaglio.demo.stage import Score, Stage


def stage(best: Any = "most", yardstick: Any = None) -> Stage:
    score = Score("points", lambda found: found["points"], best, ".1f", yardstick)
    return Stage("play", "a game", (1, 1), lambda desk: {}, score)


def table(one: Stage, points: float, file: Path, quick: bool = False) -> board.Row:
    (row,) = board.rows([one], {"play": {"points": points, "seconds": 2.0}}, quick, file)
    return row


def test_the_first_has_its_yardstick_to_beat(tmp_path: Path) -> None:
    row = table(stage(yardstick=lambda found: (3.0, "a child")), 4.0, tmp_path / "board")
    assert (row["beat"], row["of"], row["beaten"]) == (3.0, "a child", True)
    bare = table(stage(), 4.0, tmp_path / "board")
    assert (bare["beat"], bare["of"], bare["beaten"]) == (None, "the first", None)


@pytest.mark.parametrize(("best", "to_beat", "beaten"), [("most", 7.0, False), ("least", 5.0, False)])
def test_the_best_before_is_to_be_beaten(tmp_path: Path, best: str, to_beat: float, beaten: bool) -> None:
    file = tmp_path / "board.jsonl"
    for points in (5.0, 7.0):
        board.add(file, [table(stage(best), points, file)], quick=False)
    row = table(stage(best, lambda found: (0.0, "a child")), 6.0, file)
    assert (row["beat"], row["of"], row["beaten"]) == (to_beat, "best of 2 before", beaten)


def test_a_quick_demo_is_compared_with_quick_ones(tmp_path: Path) -> None:
    file = tmp_path / "board.jsonl"
    board.add(file, [table(stage(), 9.0, file)], quick=False)
    assert table(stage(), 1.0, file, quick=True)["beat"] is None
    board.add(file, [table(stage(), 2.0, file, quick=True)], quick=True)
    assert table(stage(), 1.0, file, quick=True)["beat"] == 2.0
    assert len(file.read_text().splitlines()) == 2
