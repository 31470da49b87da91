"""A demo that is stopped goes on where it was; one that was ended makes room."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from intaglio.demo import life
from intaglio.demo.board import rows
from intaglio.demo.page import page
from intaglio.demo.stage import Desk, Found, Score, Stage
from intaglio.errors import UserError


def stages(log: list[str], fails: str = "") -> list[Stage]:
    """Three that say when they run; one may fail."""

    def runner(name: str) -> Callable[[Desk], Found]:
        def run(desk: Desk) -> Found:
            if name == fails:
                raise KeyboardInterrupt
            log.append(name)
            (desk.folder / name).mkdir(parents=True, exist_ok=True)
            return {"points": len(desk.found)}

        return run

    score = Score("points", lambda found: found["points"], "most")
    names = ("one", "two", "three")
    return [Stage(name, f"stage {name}", (1, 1), runner(name), score, lambda found: ["<b>"]) for name in names]


def desk(folder: Path, said: list[str], **found: Any) -> Desk:
    return Desk(folder, False, 1, said.append, found)


def test_it_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    log: list[str] = []
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        life.live(desk(tmp_path, said), stages(log, fails="two"))
    kept = life.unfinished(tmp_path, stages(log), quick=False)
    assert [*kept] == ["one"]
    found = life.live(desk(tmp_path, said, **kept), stages(log))
    assert log == ["one", "two", "three"]
    assert [one["points"] for one in found.values()] == [0, 1, 2]
    assert said.count("    done before") == 1


def test_an_ended_one_makes_room(tmp_path: Path) -> None:
    life.live(desk(tmp_path, []), stages([]))
    (tmp_path / "notes.txt").write_text("the user's own")
    assert life.unfinished(tmp_path, stages([]), quick=True) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_what_is_no_demo_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="holds something else"):
        life.unfinished(tmp_path, stages([]), quick=False)


def test_the_other_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        life.live(desk(tmp_path, []), stages([], fails="three"))
    with pytest.raises(UserError, match="a whole demo was begun there"):
        life.unfinished(tmp_path, stages([]), quick=True)


def test_the_page_needs_nothing_else_and_escapes(tmp_path: Path) -> None:
    three = stages([])
    found = life.live(desk(tmp_path, []), three)
    text = page(three, found, rows(three, found, False, tmp_path / "none"), "a day & a machine")
    assert "a day &amp; a machine" in text
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert "http" not in text
