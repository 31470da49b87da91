"""HTML by headings and definition lists, without what every page repeats: menus, scripts, footers."""

import re
from collections.abc import Iterator
from typing import Any, Final

from intaglio.retrieval.chunks import Block
from intaglio.retrieval.reading.titles import Titles
from intaglio.retrieval.reading.unreadable import Unreadable, decoded

__all__ = ["read_html"]

_SKIPPED: Final = frozenset("script style template noscript svg head nav footer form button select iframe".split())
_SKIPPED_ROLES: Final = frozenset(("navigation", "search", "banner", "contentinfo"))
_HEADINGS: Final = {f"h{level}": level for level in range(1, 7)}
_INLINE: Final = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd label mark q rp rt ruby s samp "
    "small span strike strong sub sup time tt u var wbr".split()
)
_PERMALINKS: Final = frozenset(("headerlink", "anchor"))  # the signs beside a heading that link to itself
_SPACE: Final = re.compile(r"\s+")
_DEFINITION: Final = 10  # the level of a term in a list of definitions: below every heading


def read_html(content: bytes) -> Iterator[Block]:
    """Paragraphs, list items, table rows and preformatted text of the page's main part, below their headings.

    A term of a list of definitions (`dt`) is a heading for its explanation (`dd`): so documentation made by Sphinx is
    parted by function and class.

    Raises:
        Unreadable: nested too deeply; not text.
    """
    from bs4 import BeautifulSoup

    try:
        page = BeautifulSoup(decoded(content), "html.parser")
        main: Any = page.find("main") or page.find(role="main") or page.body or page
        yield from _Walk().blocks(main)
    except RecursionError as error:
        raise Unreadable("elements nested too deeply") from error


class _Walk:
    """One way through a page, in its order; knows the headings and the line it is at."""

    def __init__(self) -> None:
        self._titles = Titles()
        self._texts: list[str] = []
        self._line = self._first = self._last = 1
        self._terms = 0  # how deep in lists of definitions

    def blocks(self, element: Any) -> Iterator[Block]:
        """The blocks in an element."""
        yield from self._inside(element)
        yield from self._flush()

    def _inside(self, element: Any) -> Iterator[Block]:
        for child in element.children:
            if isinstance(child, str):
                if type(child).__name__ == "NavigableString":  # no comment, no doctype
                    self._say(child)
            elif not _is_skipped(child):
                self._line = child.sourceline or self._line
                yield from self._element(child)

    def _element(self, element: Any) -> Iterator[Block]:
        name = element.name
        if name in _INLINE:
            yield from self._inside(element)
        elif name == "br":
            self._texts.append("\n")
        elif name in ("td", "th"):
            yield from self._inside(element)
            self._texts.append(" | ")
        else:
            yield from self._flush()
            yield from self._block(element)

    def _block(self, element: Any) -> Iterator[Block]:
        """An element that stands on lines of its own."""
        name = element.name
        if name in _HEADINGS or name == "dt":
            level = _HEADINGS.get(name, _DEFINITION + self._terms)
            self._titles.enter(level, _text_of(element))
            yield from self._inside(element)
            yield from self._flush(is_heading=True)
        elif name == "pre":
            yield from self._preformatted(element)
        elif name == "dl":
            self._terms += 1
            yield from self._inside(element)
            yield from self._flush()
            self._titles.leave(_DEFINITION + self._terms)
            self._terms -= 1
        else:
            yield from self._inside(element)
        yield from self._flush()

    def _preformatted(self, element: Any) -> Iterator[Block]:
        text = element.get_text().strip("\n")
        if text.strip():
            yield Block(text, self._line, self._line + text.count("\n"), self._titles.path)

    def _say(self, text: str) -> None:
        if text.strip():
            if not any(said.strip() for said in self._texts):
                self._first = self._line + text[: len(text) - len(text.lstrip())].count("\n")
            self._last = self._line + text.rstrip().count("\n")
        self._texts.append(_SPACE.sub(" ", text))
        self._line += text.count("\n")

    def _flush(self, is_heading: bool = False) -> Iterator[Block]:
        text = "\n".join(line.strip() for line in "".join(self._texts).split("\n")).strip(" |\n")
        self._texts = []
        if text:
            yield Block(text, self._first, self._last, self._titles.path, is_heading=is_heading)


def _is_skipped(element: Any) -> bool:
    return (
        element.name in _SKIPPED
        or element.get("role") in _SKIPPED_ROLES
        or bool(_PERMALINKS.intersection(element.get("class") or ()))
    )


def _text_of(heading: Any) -> str:
    links = {id(text) for link in heading.find_all(class_=list(_PERMALINKS)) for text in link.strings}
    return "".join(text for text in heading.strings if id(text) not in links)  # a hash would write out the element
