"""An extension of griffe, which reads docstrings for the reference: `a, b: text` in a section is an entry for each."""

import re
from typing import Any, Final

from griffe import Extension, Object

__all__ = ["OneEntryEach"]

_ENTRY: Final = re.compile(r"^    (?P<names>\w+(?:, \w+)+):(?P<text>.*(?:\n {8}.*)*)", re.MULTILINE)


class OneEntryEach(Extension):
    """Of griffe."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrites the docstring before anybody parses it."""
        if obj.docstring and _ENTRY.search(obj.docstring.value):
            obj.docstring.value = _ENTRY.sub(_apart, obj.docstring.value)


def _apart(found: re.Match[str]) -> str:
    return "\n".join(f"    {name}:{found['text']}" for name in found["names"].split(", "))
