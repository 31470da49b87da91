"""Curves as SVG: points where they belong, round numbers on the axes."""

import re
from xml.etree import ElementTree

import pytest

from intaglio.evaluation.load.curves import Chart, Line, chart_svg, short


def places(svg: str) -> list[tuple[float, float]]:
    (path,) = re.findall(r'<polyline class="s0" points="([^"]+)"', svg)
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in path.split(" "))]


def names(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("text")]


def test_a_curve_keeps_its_proportions() -> None:
    svg = chart_svg(Chart("y", "x", [Line([(1, 0), (2, 50), (3, 100)], 0)], top=100))
    (x1, y1), (x2, y2), (x3, y3) = places(svg)
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)
    assert y1 > y3
    assert names(svg)[:6] == ["0", "20", "40", "60", "80", "100"]


def test_loads_that_grow_by_factors_are_at_equal_distances() -> None:
    (x1, _), (x2, _), (x3, _) = places(chart_svg(Chart("y", "x", [Line([(1, 1), (4, 2), (16, 3)], 0)])))
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)


def test_names_on_the_axis_do_not_touch() -> None:
    svg = chart_svg(Chart("y", "x", [Line([(x, 1.0) for x in (100, 101, 102, 103, 200)], 0)]))
    written = [
        element for element in ElementTree.fromstring(svg).iter("text") if element.get("text-anchor") == "middle"
    ]
    assert [element.text for element in written] == ["100", "200", "x"]


def test_one_point_and_none_are_no_mistake() -> None:
    assert "<circle" in chart_svg(Chart("y", "x", [Line([(8, 3.0)], 0, named="a")]))
    assert "<circle" in chart_svg(Chart("y", "x", [Line([(8, 0.0)], 0, named="a")]))
    assert chart_svg(Chart("y", "x", [Line([], 0)])) == ""
    assert "<polyline" in chart_svg(Chart("y", "x", [Line([(5.0, 0.0), (5.0, 100.0)], 0)], marks=False, top=100))


def test_what_is_written_is_text() -> None:
    svg = chart_svg(Chart('a"<b>', "x & y", [Line([(1, 1)], 0, named="<i>")]))
    ElementTree.fromstring(svg)
    assert "<i>" not in svg


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((None, "–"), (0, "0"), (0.01234, "0.0123"), (1.0, "1"), (12.34, "12.3"), (999.6, "1000"), (1234.0, "1234")),
        *((12345.0, "12.3k"), (2.5e6, "2.5M"), (0.0001, "0.0001"), (100.0, "100"), (3e12, "3e+12")),
    ],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert short(value) == text
