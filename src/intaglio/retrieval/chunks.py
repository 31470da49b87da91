"""Passages: blocks that belong together are put into one until it is full, and the next begins with the end of it.

A block (a paragraph, a row, a line of code) is torn only where it is too long alone: first between lines, then between
sentences, then between words. No passage reaches over a heading, a definition or a page.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import groupby
from typing import Final

from intaglio.retrieval.index import Chunk

__all__ = ["Block", "about_tokens", "chunks_of"]

OVERLAP: Final = 8
"""A passage begins with up to one part in so many of the one before."""

_WORDS: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+?(?=[\u3040-\uffff]|[\W_]|$)|[^\w\s]|_")
_LINES: Final = re.compile(r"(?<=\n)")
_SENTENCES: Final = re.compile(r"(?<=[.!?;:])\s+|(?<=[。！？；])")
_SPACES: Final = re.compile(r"(?<=\s)")
_LETTERS_A_TOKEN: Final = 6


@dataclass(frozen=True)
class Block:
    """What a reader finds in a file: a piece of text that is best left whole, and where it stands.

    Attributes:
        text: its text.
        line: its first line, from 1.
        last_line: its last.
        title: see `Chunk`.
        page: see `Chunk`.
        glue: what parts it from the next block of a passage.
        is_heading: it says what the blocks behind it are about.
    """

    text: str
    line: int
    last_line: int
    title: str = ""
    page: int | None = None
    glue: str = "\n"
    is_heading: bool = False


def about_tokens(text: str) -> int:
    """How many tokens a model of sentences makes of it, roughly: a word is one for every six letters begun."""
    return sum(1 + (len(word) - 1) // _LETTERS_A_TOKEN for word in _WORDS.findall(text))


def chunks_of(file: str, blocks: Iterable[Block], limit: int) -> Iterator[Chunk]:
    """The passages of a file.

    Args:
        file: its name in the index.
        blocks: what stands in it, in order.
        limit: most tokens of a passage and its title, by `about_tokens`.
    """
    seen: set[str] = set()
    for title, page, blocks_here in _sections(blocks):
        room = max(limit - about_tokens(title), limit // 2)
        pieces = [piece for block in blocks_here for piece in _pieces(block, room)]
        for part in _filled(pieces, room):
            text = "".join(piece.text + piece.glue for piece in part).strip()
            id = _id(file, title, page, text, part[0].line)
            if text and id not in seen:
                seen.add(id)
                yield Chunk(id, text, file, part[0].line, part[-1].last_line, title, page)


def _sections(blocks: Iterable[Block]) -> Iterator[tuple[str, int | None, list[Block]]]:
    """Title, page and blocks of what stands together; a heading with nothing below it goes with what follows."""
    headings: list[Block] = []
    place: tuple[str, int | None] = ("", None)
    for place, section in groupby(blocks, key=lambda block: (block.title, block.page)):
        here = [*headings, *section]
        headings = here if all(block.is_heading for block in here) else []
        if not headings:
            yield *place, here
    if headings:
        yield *place, headings


def _filled(pieces: list[Block], limit: int) -> Iterator[list[Block]]:
    part: list[Block] = []
    size = 0
    for piece in pieces:
        length = about_tokens(piece.text)
        if part and size + length > limit:
            yield part
            part = _end_of(part, min(limit // OVERLAP, limit - length))
            size = sum(about_tokens(kept.text) for kept in part)
        part.append(piece)
        size += length
    if part:
        yield part


def _end_of(part: list[Block], room: int) -> list[Block]:
    """The last lines or sentences that have no more than `room` tokens together."""
    kept: list[Block] = []
    for piece in reversed([small for block in part[-OVERLAP:] for small in _pieces(block, max(room, 1))]):
        room -= about_tokens(piece.text)
        if room < 0:
            break
        kept.insert(0, piece)
    return kept


def _pieces(block: Block, limit: int) -> Iterator[Block]:
    """The block, or what it is torn into: lines, else sentences, else words, each within the limit."""
    if about_tokens(block.text) <= limit:
        yield block
        return
    line = block.line
    parts = _torn(block.text, limit)
    for number, text in enumerate(parts, start=1):
        glue = block.glue if number == len(parts) else ""
        last = min(line + text.rstrip("\n").count("\n"), block.last_line)
        yield replace(block, text=text, line=line, last_line=last, glue=glue)
        line = min(line + text.count("\n"), block.last_line)


def _torn(text: str, limit: int) -> list[str]:
    for seam in (_LINES, _SENTENCES, _SPACES):
        parts = _cut(seam, text)
        if len(parts) > 1:
            return [piece for part in parts for piece in (_torn(part, limit) if about_tokens(part) > limit else [part])]
    return [text[i : i + limit] for i in range(0, len(text), limit)]


def _cut(seam: re.Pattern[str], text: str) -> list[str]:
    """The text cut at every seam; nothing of it is lost."""
    ends = [*(match.end() for match in seam.finditer(text)), len(text)]
    starts = [0, *ends]
    return [text[start:end] for start, end in zip(starts, ends, strict=False) if end > start]


def _id(file: str, title: str, page: int | None, text: str, line: int) -> str:
    place = "\0".join([file, title, str(page), str(line), text])
    return blake2b(place.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
