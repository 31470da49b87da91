"""The drawing kit: letters are measured wide enough, clashes are seen, files are whole."""

from xml.dom.minidom import parseString

import pytest

from intaglio.atlas.svg import Canvas, as_file, side_by_side, text_width, wrapped

ASCII = "".join(map(chr, range(32, 127)))


def drawn_width(words: str, *, bold: bool = False) -> float:
    """In DejaVu Sans, for a size of 1, as the font itself says."""
    font_manager = pytest.importorskip("matplotlib.font_manager")
    from matplotlib.ft2font import FT2Font

    wanted = font_manager.FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")
    font = FT2Font(font_manager.findfont(wanted))
    font.set_size(100, 72)
    return sum(font.load_char(ord(letter)).linearHoriAdvance for letter in words) / 65536 / 100


@pytest.mark.parametrize("letter", ASCII)
def test_no_letter_is_wider_than_measured(letter: str) -> None:
    assert drawn_width(letter) <= text_width(letter, 1) + 1e-6


@pytest.mark.parametrize("words", ["RMSNorm", "the quick brown fox jumps over the lazy dog", "Interleaved 1F1B: 15.8%"])
def test_texts_are_measured_closely(words: str) -> None:
    assert drawn_width(words) <= text_width(words, 1) < 1.15 * drawn_width(words)
    assert drawn_width(words, bold=True) <= text_width(words, 1, strong=True)


def test_chinese_letters_are_square() -> None:
    assert text_width("注意力", 12) == 36


@pytest.mark.parametrize(
    ("anchor", "turned", "box"),
    [
        ("start", False, (50, 47, 56.5, 52)),
        ("end", False, (43.5, 47, 50, 52)),
        ("middle", False, (46.75, 47, 53.25, 52)),
        ("start", True, (42.2, 43.5, 52.2, 50)),
    ],
)
def test_a_text_lies_where_it_is_written(anchor: str, turned: bool, box: tuple[float, ...]) -> None:
    canvas = Canvas(100, 100)
    canvas.text(50, 50, "a", size=10, anchor=anchor, turned=turned)
    (found,) = canvas.boxes
    assert (found.left, found.right) == pytest.approx((box[0], box[2]))
    assert found.bottom == pytest.approx(box[3], abs=0.3)


def test_texts_upon_each_other_are_seen() -> None:
    canvas = Canvas(200, 60)
    canvas.text(10, 20, "first")
    canvas.text(30, 24, "second")
    canvas.text(10, 50, "third")
    assert canvas.clashes() == ["'first' on 'second'"]


def test_a_text_beyond_the_edge_is_seen() -> None:
    canvas = Canvas(40, 40)
    canvas.text(20, 20, "too long for this")
    assert canvas.clashes() == ["'too long for this' beyond the edge"]


def test_lines_fit_and_nothing_is_lost() -> None:
    words = "Attention is all that is needed, and recurrence goes. 注意力就够了，循环可以去掉。"
    lines = wrapped(words, 90, 12)
    assert len(lines) > 3
    assert all(text_width(line, 12) <= 90 for line in lines)
    assert "".join(lines).replace(" ", "") == words.replace(" ", "")


def test_no_line_begins_with_chinese_punctuation() -> None:
    for width in range(30, 120, 7):
        assert not any(
            line.startswith(("，", "。")) for line in wrapped("一二三四五，六七八九十。甲乙丙丁，戊己", width, 12)
        )


def test_pictures_side_by_side_keep_their_texts() -> None:
    panels = [Canvas(100, 30) for _ in range(3)]
    for place, panel in enumerate(panels):
        panel.text(10, 20, f"panel {place}")
    whole = side_by_side(panels, width=230, gap=20)
    assert (whole.width, whole.height) == (220, 80)
    assert [(box.left, round(box.top)) for box in whole.boxes] == [(10, 11), (130, 11), (10, 61)]


def test_a_file_is_xml_that_stands_alone() -> None:
    canvas = Canvas(100, 40)
    canvas.text(5, 20, "<a & b>")
    with canvas.link("#there"):
        canvas.rect(0, 0, 10, 10, "box", said='"quoted" & <tagged>')
    text = as_file([canvas], 'what it\'s "about"')
    root = parseString(text).documentElement
    assert root is not None
    assert root.getAttribute("aria-label") == 'what it\'s "about"'
    assert root.getElementsByTagName("a")[0].getAttribute("href") == "#there"
    assert "prefers-color-scheme: dark" in text
    assert text.count("http") == 1, "the name space alone"
