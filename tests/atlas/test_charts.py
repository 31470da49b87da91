"""Charts: points stand where their values say, ticks are round, cells are as strong as their values."""

import re
from itertools import pairwise

import pytest

from intaglio.atlas.charts import Axis, Curve, chart, columns, field, short_bytes_tick
from intaglio.atlas.svg import Canvas


def points_of(canvas: Canvas) -> list[tuple[float, float]]:
    """Of the first curve."""
    text = next(part for part in canvas.parts if part.startswith("<polyline"))
    found = re.search('points="([^"]*)"', text)
    assert found
    return [tuple(map(float, point.split(","))) for point in found[1].split()]  # type: ignore[misc]


def texts(canvas: Canvas) -> list[str]:
    return [box.text for box in canvas.boxes]


def test_a_straight_line_is_drawn_straight() -> None:
    places = points_of(chart("t", [Curve("a", [(0, 0), (1, 5), (2, 10)], 0)], Axis("x"), Axis("y")))
    (x0, y0), (x1, y1), (x2, y2) = places
    assert x1 == pytest.approx((x0 + x2) / 2, abs=0.1)
    assert y1 == pytest.approx((y0 + y2) / 2, abs=0.1)
    assert y0 > y2, "up is more"


def test_powers_are_evenly_apart_on_a_logarithmic_axis() -> None:
    curve = Curve("a", [(x, 10.0**x) for x in range(4)], 0)
    heights = [y for _, y in points_of(chart("t", [curve], Axis("x"), Axis("y", base=10)))]
    steps = [a - b for a, b in pairwise(heights)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.15)


def test_ticks_are_round_and_inside() -> None:
    canvas = chart("t", [Curve("a", [(0, 3), (7, 17)], 0)], Axis("x"), Axis("y", low=0))
    assert [text for text in texts(canvas) if text.isdigit()] == ["0", "5", "10", "15", "20", "0", "2", "4", "6"]


def test_names_under_an_axis_do_not_touch() -> None:
    ticks = list(range(0, 200, 3))
    canvas = chart("t", [Curve("a", [(0, 0), (200, 1)], 0)], Axis("x", ticks=ticks), Axis("y"))
    assert canvas.clashes() == []
    assert 3 < sum(text.isdigit() and int(text) % 3 == 0 for text in texts(canvas)) < len(ticks)


def test_a_stack_says_its_sum_and_is_as_high() -> None:
    canvas = columns("t", {"one": {"a": 1.0, "b": 3.0}, "two": {"a": 2.0}}, "y", lambda value: f"{value:g}")
    heights = [
        float(found) for part in canvas.parts if "<title>" in part for found in re.findall('height="([^"]*)"', part)
    ]
    assert heights[1] == pytest.approx(3 * heights[0], abs=0.2)
    assert heights[2] == pytest.approx(2 * heights[0], abs=0.2)
    assert "4" in texts(canvas)


def test_cells_are_as_strong_as_their_values() -> None:
    canvas = field("t", [[0.0, 0.5], [1.0, 1.0]], low=0, high=1, cell=10)
    strokes = (re.search('d="([^"]*)" fill-opacity="([^"]*)"', part) for part in canvas.parts)
    shades = {found[2]: found[1] for found in strokes if found}
    assert set(shades) == {"0.50", "1.00"}, "0 leaves the paper"
    assert shades["1.00"].count("M") == 1, "neighbours are one stroke"
    assert "h20" in shades["1.00"]
    assert "h10" in shades["0.50"]


@pytest.mark.parametrize(("value", "said"), [(1, "1 B"), (2048, "2 KiB"), (3 << 29, "1.5 GiB"), (1 << 40, "1 TiB")])
def test_bytes_in_words(value: float, said: str) -> None:
    assert short_bytes_tick(value) == said
