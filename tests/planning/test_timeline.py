"""Timelines: a box for each action, in its row, as well-formed XML."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from intaglio.planning.schedules import schedule
from intaglio.planning.simulation import simulate
from intaglio.planning.timeline import draw_timeline, timeline_svg
from intaglio.specs.parallel import PipelineSpec

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", ["1f1b", "zbv_zero_bubble", "dual_pipe_v", "interleaved_1f1b"])
def test_a_box_for_each_action(name: str) -> None:
    run = simulate(schedule(PipelineSpec(ranks=2, schedule=name), 4))
    picture = ElementTree.fromstring(timeline_svg(run, "A & B <1>"))
    boxes = [rect for rect in picture.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    assert len(boxes) == sum(map(len, run.rows))
    texts = [text.text for text in picture.iter(f"{SVG}text")]
    assert {"A & B <1>", "rank 0", "rank 1"} <= set(texts)
    widths = sum(float(box.get("width", 0)) for box in boxes)
    rows = {box.get("y") for box in boxes}
    assert len(rows) == 2
    assert widths == pytest.approx(2 * 1120 * (1 - run.bubble), rel=1e-3)


def test_stages_of_a_rank_have_shades() -> None:
    run = simulate(schedule(PipelineSpec(ranks=2, schedule="interleaved_1f1b", chunks=3), 2))
    picture = ElementTree.fromstring(timeline_svg(run, ""))
    fills = {box.get("fill") for box in picture.iter(f"{SVG}rect") if box.find(f"{SVG}title") is not None}
    assert len(fills) == 6  # forwards and backwards of three


def test_a_file_that_is_whole(tmp_path: Path) -> None:
    run = simulate(schedule(PipelineSpec(ranks=2), 2))
    draw_timeline(tmp_path / "new" / "a.svg", run, "two", "seconds")
    assert "time in seconds" in (tmp_path / "new" / "a.svg").read_text()
