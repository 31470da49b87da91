"""PDF by pages and docx by headings, through the libraries that know them."""

import io
import logging
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from intaglio.retrieval.chunks import Block
from intaglio.retrieval.reading.titles import Titles
from intaglio.retrieval.reading.unreadable import Unreadable

__all__ = ["read_docx", "read_pdf"]

_LARGEST: Final = 1 << 29  # bytes that a docx may hold once unpacked


def read_pdf(content: bytes) -> Iterator[Block]:
    """The lines of every page, counted within the page.

    Raises:
        Unreadable: broken, locked by a password, or made of pictures alone.
    """
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # we say ourselves what is wrong
    with _library_errors("PDF"):
        reader = PdfReader(io.BytesIO(content))
        if reader.is_encrypted and not reader.decrypt(""):
            raise Unreadable("locked by a password")
        pages = [page.extract_text() for page in reader.pages]
    if not any(page.strip() for page in pages):
        raise Unreadable("a PDF without text (scanned pages need text recognition first)")
    for number, text in enumerate(pages, start=1):
        for line, words in enumerate(text.split("\n"), start=1):
            yield Block(words, line, line, page=number)


def read_docx(content: bytes) -> Iterator[Block]:
    """Paragraphs and table rows below their headings; the line is the number of the paragraph or row.

    Raises:
        Unreadable: broken, or unreasonably large once unpacked.
    """
    with _library_errors("docx"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(info.file_size for info in archive.infolist()) > _LARGEST:
                raise Unreadable("unreasonably large once unpacked")
        blocks = list(_docx_blocks(content))
    yield from blocks


def _docx_blocks(content: bytes) -> Iterator[Block]:
    import docx
    from docx.text.paragraph import Paragraph

    titles, line = Titles(), 0
    for item in docx.Document(io.BytesIO(content)).iter_inner_content():
        for text in [item.text] if isinstance(item, Paragraph) else _rows(item):
            line += 1
            level = _level(item.style.name if isinstance(item, Paragraph) and item.style else "")
            if level is not None and text.strip():
                titles.enter(level, text)
            if text.strip():
                yield Block(text, line, line, titles.path, is_heading=level is not None)


def _rows(table: Any) -> Iterator[str]:
    for row in table.rows:
        yield " | ".join(cell.text for cell in row.cells)


def _level(style: str | None) -> int | None:
    """0 for a title, 1 to 9 for headings, None for all else."""
    words = (style or "").split()
    if words[:1] == ["Heading"] and words[-1].isdigit():
        return int(words[-1])
    return 0 if words == ["Title"] else None


@contextmanager
def _library_errors(kind: str) -> Iterator[None]:
    """What a library raises over a broken file is of any class, and means the file every time."""
    try:
        yield
    except (Unreadable, ImportError, MemoryError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:100]
        raise Unreadable(f"a broken {kind} file ({type(error).__name__}{': ' + said if said else ''})") from error
