"""The page of a load test: alone, well-formed, and with the figures on it."""

from functools import lru_cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from chromium import Chromium, find_chromium
from intaglio.evaluation.load.arrivals import ClosedLoop, Constant, OpenLoop
from intaglio.evaluation.load.lengths import Lengths
from intaglio.evaluation.load.page import page
from intaglio.evaluation.load.prompts import RandomPrompts
from intaglio.evaluation.load.report import document
from intaglio.evaluation.load.run import Plan, compare
from intaglio.evaluation.load.slo import Targets
from intaglio.evaluation.load.target import Target
from scripted_stream import Script, ScriptedTransport
from virtual_time import run_virtual


class Reader(HTMLParser):
    """What stands in the elements; a tag that is not closed, or twice, is a mistake."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: dict[str, list[str]] = {}
        self.references: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.references += [value for name, value in attrs if name in ("src", "href")]
        self.open += [] if tag in ("meta", "br") else [tag]

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.words.setdefault(self.open[-1], []).append(data)


@lru_cache
def made(names: tuple[str, ...] = ("ours", "<b>theirs</b>"), slots: int = 3) -> str:
    plan = Plan(
        (ClosedLoop(1), ClosedLoop(4), ClosedLoop(16), OpenLoop(8, Constant())),
        RandomPrompts(Lengths.fixed(8), Lengths.fixed(5)),
        requests=16,
        targets=Targets(ttft=0.5),
    )

    async def test() -> Any:
        scripts = [Script(slots=slots), Script(first=0.25, slots=slots, refusals=[(503, {})] * 3)]
        pairs = zip(names, scripts, strict=False)
        targets = [Target("x", name=name, transport=ScriptedTransport(script)) for name, script in pairs]
        return document(await compare(targets, plan), targets, plan)

    return page(run_virtual(test()))


def test_the_page_needs_nothing_else() -> None:
    text = made()
    reader = Reader(text)
    assert reader.references == []
    assert "http" not in text.replace("http-equiv", "")
    assert "<script" not in text
    assert "url(" not in text


def test_the_figures_are_on_the_page() -> None:
    words = Reader(made()).words
    cells = words["td"]
    for said in ("4 at once", "8/s constant", "125 / 125", "80/80", "HTTP 503", "not now"):
        assert said in cells, said
    assert "Tokens of answers a second" in words["h3"]
    assert "Open loop: conversations a second" in words["h2"]
    assert "Distribution at 16 at once" in words["h2"]
    assert any("p99" in text for text in words["li"])


def test_names_are_text() -> None:
    assert "<b>theirs" not in made()


def test_one_server_has_its_levels_beside_each_other() -> None:
    assert "Distribution at each level" in Reader(made(("ours",))).words["h2"]


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium here")
def test_the_page_fits_a_phone_and_either_theme(tmp_path: Path) -> None:
    file = tmp_path / "load.html"
    file.write_text(made())
    program = find_chromium()
    assert program is not None
    browser = Chromium(program, tmp_path / "profile")
    try:
        grounds = []
        for dark, size in [(False, (1280, 800)), (True, (375, 700))]:
            with browser.page(dark=dark, size=size) as tab:
                tab.open(file.as_uri())
                assert tab.run("document.documentElement.scrollWidth <= innerWidth")
                grounds.append(tab.run("getComputedStyle(document.body).backgroundColor"))
                assert tab.errors() == []
        assert grounds == ["rgb(250, 249, 245)", "rgb(23, 22, 20)"]
    finally:
        browser.close()
