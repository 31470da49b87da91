"""The page and each figure on it: whole, in both languages, nothing upon anything else, nothing from elsewhere."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.dom.minidom import parseString

import pytest

from chromium import Chromium, find_chromium
from intaglio.atlas.book import BOOK
from intaglio.atlas.figure import LANGUAGES
from intaglio.atlas.page import Plate, page
from intaglio.atlas.svg import as_file
from intaglio.errors import UserError
from running import unmeasured
from tiny_figures import beside, tiny_figures

NAMES = list(BOOK)
CHINESE = re.compile("[\u4e00-\u9fff]")
VOID = {"meta", "br"}


@pytest.fixture(scope="module")
def plates(toy_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plate]:
    """Every figure, drawn from tiny runs."""
    figures = tiny_figures(toy_dir, tmp_path_factory.mktemp("rows"))
    with pytest.MonkeyPatch.context() as patch:
        unmeasured(patch)
        beside(patch)
        return {name: Plate(figure, figure.data()) for name, figure in figures.items()}


@pytest.fixture(scope="module")
def text(plates: dict[str, Plate]) -> str:
    """The page of all of them."""
    return page(list(plates.values()), "made here")


def pictures(plate: Plate) -> Iterator[tuple[str, Any]]:
    """The language and the panels of each picture of a figure."""
    for lang, say in LANGUAGES.items():
        drawn = {"": plate.figure.draw(plate.data, say), **plate.figure.leaves(plate.data, say)}
        yield from ((lang, panels) for panels in drawn.values())


def test_no_figure_is_forgotten(plates: dict[str, Plate]) -> None:
    assert list(plates) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_no_text_lies_on_another(plates: dict[str, Plate], name: str) -> None:
    clashes = [clash for _, panels in pictures(plates[name]) for panel in panels for clash in panel.clashes()]
    assert clashes == []


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_xml(plates: dict[str, Plate], name: str) -> None:
    for _, panels in pictures(plates[name]):
        parseString(as_file(panels, name))


@pytest.mark.parametrize("name", NAMES)
def test_both_languages_are_complete(plates: dict[str, Plate], name: str) -> None:
    plate = plates[name]
    for words in (plate.figure.title, plate.figure.claim, plate.figure.caption(plate.data)):
        assert words.en
        assert CHINESE.search(words.zh)
    if name != "attention-maps":  # whose sentence is Chinese
        assert not CHINESE.search(plate.figure.title.en + plate.figure.caption(plate.data).en)
        said = {
            lang: [box.text for _, panels in pictures(plate) if _ == lang for p in panels for box in p.boxes]
            for lang in LANGUAGES
        }
        assert not any(map(CHINESE.search, said["en"]))
        assert any(map(CHINESE.search, said["zh"])) or name == "family-tree"


def test_each_generation_says_in_chinese_what_it_changed(plates: dict[str, Plate]) -> None:
    plate = plates["family-tree"]
    for panels in plate.figure.leaves(plate.data, LANGUAGES["zh"]).values():
        assert any(CHINESE.search(box.text) for box in panels[0].boxes)


class Tags(HTMLParser):
    """Checks that tags close in their order, and gathers ids and links."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(dict(attrs))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def _note(self, attrs: dict[str, str | None]) -> None:
        self.ids += [attrs["id"] or ""] if "id" in attrs else []
        self.links += [attrs["href"] or ""] if "href" in attrs else []
        self.sources += [value or "" for name, value in attrs.items() if name in ("src", "srcset", "data", "action")]


def test_the_page_is_whole_and_its_links_lead_somewhere(text: str) -> None:
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert len(tags.ids) == len(set(tags.ids))
    assert {link.removeprefix("#") for link in tags.links} <= set(tags.ids)
    assert sum(link.startswith("#generation-") for link in tags.links) >= 2 * 27


def test_the_page_needs_nothing_else(text: str) -> None:
    tags = Tags()
    tags.feed(text)
    assert tags.sources == []
    assert not re.search(r"https?://|url\(|@import|<link", text)


def test_under_each_figure_stands_its_command(text: str) -> None:
    for name in NAMES:
        assert f"<code>intaglio atlas --only {name}</code>" in text


def test_commands_in_captions_are_code(text: str) -> None:
    assert "<code>intaglio ladder history</code>" in text
    assert "`" not in re.sub(r"(?s)<(script|style)>.*?</\1>|<svg.*?</svg>", "", text)


def test_a_figure_that_lacks_something_says_what() -> None:
    figure = tiny_figures(Path("nowhere"))["attention-maps"]
    with pytest.raises(UserError, match="not here") as caught:
        figure.data()
    assert "intaglio pull" in str(caught.value)
    assert "not here" in page([Plate(figure, missing=str(caught.value))])


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium here")
def test_in_a_browser_texts_fit_their_boxes_and_the_page_a_phone(plates: dict[str, Plate], tmp_path: Path) -> None:
    file = tmp_path / "atlas.html"
    file.write_text(page([plates[name] for name in ("family-tree", "masks", "paged-attention")]), encoding="utf-8")
    program = find_chromium()
    assert program
    browser = Chromium(program, tmp_path / "profile")
    try:
        with browser.page(dark=True, size=(390, 800)) as tab:
            tab.open(f"{file.as_uri()}?lang=zh#generation-gpt2")
            assert tab.run("document.documentElement.scrollWidth") <= 390
            assert tab.count("section h2") == 6
            assert tab.run("getComputedStyle(document.querySelector('h2[lang=en]')).display") == "none"
            assert tab.run("getComputedStyle(document.querySelector('#generation-gpt2')).display") == "block"
            assert tab.run("getComputedStyle(document.querySelector('#generation-rnn')).display") == "none"
            tab.click("button[data-lang=en]")
            assert tab.run("getComputedStyle(document.querySelector('h2[lang=zh]')).display") == "none"
            widths = tab.run(
                "[...document.querySelectorAll('.panels[lang=en] text')].map((e) => e.getComputedTextLength())"
            )
            assert max(widths) > 50
            assert tab.errors() == []
            measured = [
                box.right - box.left
                for name in ("masks",)
                for p in plates[name].figure.draw(plates[name].data, LANGUAGES["en"])
                for box in p.boxes
                if not box.text.startswith("queries")
            ]
            shown = tab.run(
                "[...document.querySelectorAll('#masks .panels[lang=en] text:not([transform])')]"
                ".map((e) => e.getComputedTextLength())"
            )
            assert all(real <= kit + 0.5 for real, kit in zip(shown, measured, strict=True))
    finally:
        browser.close()
