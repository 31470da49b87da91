"""Plain text by paragraphs, Markdown by headings, source code by definitions."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from intaglio.retrieval.chunks import Block
from intaglio.retrieval.reading.titles import Titles
from intaglio.retrieval.reading.unreadable import decoded

__all__ = ["read_code", "read_markdown", "read_text"]

_HEADING: Final = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*$")
_UNDERLINE: Final = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_DEFINITION: Final = re.compile(
    r"(?P<indent>[ \t]*)(?:[\w@]+[ \t]+)*?"
    r"(?:def|class|func|fn|function|struct|enum|trait|impl|interface|module|namespace|union|object)\b(?:<[^>]*>)?"
    r"[ \t]+(?:\([^)]*\)[ \t]*)?(?P<name>[\w.:]+)[ \t]*(?:[({\[<:]|\w+[ \t].*[{:]|$)"
)
_FUNCTION_IN_C: Final = re.compile(r"(?P<indent>)[A-Za-z_][\w \t*&:<>,]*?[ \t*&](?P<name>[\w:~]+)\([^;]*$")
_BEFORE: Final = re.compile(r"[ \t]*(?:#|//|/\*|\*|@|\[|--)")  # comments and decorators belong to what they stand above
_CLOSING: Final = ("", ")", "]", "}", "{")  # or an empty line
_TAB: Final = 4


def read_text(content: bytes) -> Iterator[Block]:
    """Paragraphs, as empty lines part them."""
    yield from _paragraphs(decoded(content).split("\n"), 1, "")


def read_markdown(content: bytes) -> Iterator[Block]:
    """Paragraphs below their headings (`#` or underlined); fenced code is no heading, and stays in one piece."""
    titles, lines, start = Titles(), decoded(content).split("\n"), 0
    for begin, body, level, heading in _headings(lines):
        yield from _paragraphs(lines[start:begin], start + 1, titles.path)
        titles.enter(level, heading)
        yield Block(heading, begin + 1, body, titles.path, is_heading=True)
        start = body
    yield from _paragraphs(lines[start:], start + 1, titles.path)


def read_code(content: bytes) -> Iterator[Block]:
    """Lines below the definitions they stand in, told by keyword and indentation, whatever the language."""
    titles, lines, start = Titles(), decoded(content).split("\n"), 0
    for number, line in enumerate(lines):
        found = _DEFINITION.match(line) or _FUNCTION_IN_C.match(line)
        indent = len(line.expandtabs(_TAB)) - len(line.expandtabs(_TAB).lstrip())
        if not found and (indent > titles.innermost or line.strip()[:1] in _CLOSING):
            continue  # goes on with what it stands in
        begin = _beginning(lines, number, start) if found else number
        yield from _lines(lines[start:begin], start + 1, titles.path)
        start = begin
        titles.leave(indent)
        if found:
            titles.enter(indent, found["name"])
    yield from _lines(lines[start:], start + 1, titles.path)


def _beginning(lines: Sequence[str], definition: int, start: int) -> int:
    """The first line of the comments and decorators right above a definition."""
    while definition > start and _BEFORE.match(lines[definition - 1]):
        definition -= 1
    return definition


def _lines(lines: Sequence[str], first: int, title: str) -> Iterator[Block]:
    for number, line in enumerate(lines, start=first):
        yield Block(line, number, number, title)


def _headings(lines: Sequence[str]) -> Iterator[tuple[int, int, int, str]]:
    """First line, line after it, level and text of every heading, counted from 0."""
    fence = ""
    for number, line in enumerate(lines):
        mark = _FENCE.match(line)
        if mark and (not fence or line.strip().startswith(fence)):
            fence = "" if fence else mark[1]
        elif not fence and (found := _HEADING.match(line)):
            yield number, number + 1, len(found[1]), found[2]
        elif not fence and number and (found := _UNDERLINE.match(line)) and _is_heading(lines[number - 1]):
            yield number - 1, number + 1, 1 if found[1][0] == "=" else 2, lines[number - 1].strip()


def _is_heading(line: str) -> bool:
    return bool(line.strip()) and not re.match(r"[ \t]*(?:[-*+>|#]|\d+[.)] )", line)


def _paragraphs(lines: Sequence[str], first: int, title: str) -> Iterator[Block]:
    part: list[str] = []
    fence = ""
    for number, line in enumerate([*lines, ""], start=first):
        mark = _FENCE.match(line)
        if mark and (not fence or line.strip().startswith(fence)):
            fence = "" if fence else mark[1]
        if line.strip() or (fence and number < first + len(lines)):
            part.append(line)
        elif part:
            yield Block("\n".join(part), number - len(part), number - 1, title, glue="\n\n")
            part = []
