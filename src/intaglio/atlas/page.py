"""The atlas as one page that needs nothing else: in two languages, light or dark, for a screen, a phone or paper."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from intaglio.atlas.figure import LANGUAGES, Figure, Words
from intaglio.atlas.palette import COLOURS, rules
from intaglio.atlas.svg import Canvas

__all__ = ["Plate", "page"]

_TITLE = Words("The atlas", "图集")
_ABOUT = Words(
    "Language models from the recurrent network to today, by what each took away. Every figure is drawn from the "
    "running code, of numbers that a small run of it made on this machine; under each stands the command that "
    "makes it again.",
    "从循环网络到今天的语言模型：每一代减去了什么。每张图都由运行中的代码绘制，数字来自本机上的小规模运行；图下是重"
    "新生成它的命令。",
)
_WIDE = 480  # from here on a panel scrolls by itself on a phone


@dataclass(frozen=True)
class Plate:
    """A figure with its data, or the reason why it has none."""

    figure: Figure
    data: Any = None
    missing: str = ""


def page(plates: Sequence[Plate], made: str = "") -> str:
    """The page.

    Args:
        plates: in their order.
        made: when and on what, for its foot.
    """
    parts = [
        '<header><div class="choose">',
        *_choice("lang", {"en": "English", "zh": "中文"}),
        *_choice("theme", {"auto": "◐", "light": "☀", "dark": "☾"}),
        "</div>",
        *_both("h1", _TITLE),
        *_both("p", _ABOUT),
        *_contents(plates),
        "</header>",
        *(part for number, plate in enumerate(plates, 1) for part in _plate(number, plate)),
        f'<footer class="small">{escape(made)}</footer>',
        f"<script>\n{_asset('page.js')}</script>",
    ]
    head = [
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Intaglio: {_TITLE.en} · {_TITLE.zh}</title>",
        f"<style>\n{_colours()}\n{rules(_either)}\n{_asset('page.css')}</style>",
    ]
    return "\n".join(
        ["<!doctype html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", *parts, "</body>", "</html>\n"]
    )


def _plate(number: int, plate: Plate) -> Iterator[str]:
    figure = plate.figure
    yield f'<section id="{figure.name}">'
    yield from _both("h2", Words(f"{number}. {figure.title.en}", f"{number}. {figure.title.zh}"))
    yield from _both("p", figure.claim, "claim")
    if plate.missing:
        yield f'<p class="missing">{escape(plate.missing)}</p>'
    else:
        yield '<div class="plate">'
        for lang, say in LANGUAGES.items():
            yield f'<div class="panels" lang="{lang}">'
            yield from map(_panel, figure.draw(plate.data, say))
            yield "</div>"
        yield from _leaves(plate)
        yield "</div>"
        yield from _both("p", figure.caption(plate.data), "caption")
    yield f"<pre><code>intaglio atlas --only {figure.name}</code></pre>"
    yield "</section>"


def _leaves(plate: Plate) -> Iterator[str]:
    """Pictures that show when they are the page's target; all of them on paper."""
    drawn = {lang: plate.figure.leaves(plate.data, say) for lang, say in LANGUAGES.items()}
    names = list(drawn["en"])
    if not names:
        return
    yield '<div class="leaves">'
    for name in names:
        yield f'<div class="leaf" id="{name}">'
        for lang, leaves in drawn.items():
            yield f'<div class="panels" lang="{lang}">{"".join(map(_panel, leaves[name]))}</div>'
        yield "</div>"
    yield "</div>"


def _panel(canvas: Canvas) -> str:
    wide = " wide" if canvas.width > _WIDE else ""
    title = next((box.text for box in canvas.boxes), "")
    return f'<figure class="panel{wide}" style="--w: {canvas.width:.0f}px">{canvas.svg(title)}</figure>'


def _contents(plates: Sequence[Plate]) -> Iterator[str]:
    for lang, say in LANGUAGES.items():
        links = (f'<li><a href="#{one.figure.name}">{escape(say(*one.figure.title))}</a></li>' for one in plates)
        yield f'<nav lang="{lang}"><ol>{"".join(links)}</ol></nav>'


def _both(tag: str, words: Words, look: str = "") -> Iterator[str]:
    dressed = f' class="{look}"' if look else ""
    for lang, say in LANGUAGES.items():
        yield f'<{tag} lang="{lang}"{dressed}>{_with_code(say(*words))}</{tag}>'


def _with_code(text: str) -> str:
    """As HTML; what stands between backticks is code."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(text))


def _choice(name: str, options: dict[str, str]) -> Iterator[str]:
    buttons = (f'<button type="button" data-{name}="{value}">{shown}</button>' for value, shown in options.items())
    yield f'<span role="group">{"".join(buttons)}</span>'


def _colours() -> str:
    named = "; ".join(f"--{name}: {_either(*pair)}" for name, pair in COLOURS.items())
    return f":root {{ color-scheme: light dark; {named}; }}"


def _either(light: str, dark: str) -> str:
    return f"light-dark({light}, {dark})"


def _asset(name: str) -> str:
    return (files("intaglio.atlas") / name).read_text("utf-8")
