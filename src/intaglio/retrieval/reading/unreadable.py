"""Why a file cannot be read, and its bytes as text."""

import codecs
import re
from typing import Final

__all__ = ["Unreadable", "decoded"]

_MARKS: Final = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_DECLARED: Final = re.compile(rb"<(?:meta\b[^>]*?charset|\?xml\b[^>]*?encoding)\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_HEAD: Final = 2048  # where a page may say its encoding


class Unreadable(Exception):
    """A file that is left out of the index; says why in a few words."""


def decoded(content: bytes) -> str:
    """The text of a file: by its byte order mark, by what a page declares, else UTF-8.

    Raises:
        Unreadable: a binary file, or text in another encoding.
    """
    encoding = next((name for mark, name in _MARKS if content.startswith(mark)), None)
    if encoding is None and b"\0" in content:
        raise Unreadable("a binary file")
    declared = _DECLARED.search(content[:_HEAD])
    encoding = encoding or (declared[1].decode() if declared else "utf-8")
    try:
        return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeError as error:
        at = getattr(error, "start", 0)
        raise Unreadable(f"not {encoding} text from byte {at} on; convert it to UTF-8") from error
    except LookupError as error:
        raise Unreadable(f"declares an unknown encoding, {encoding}") from error
