"""A hook of mkdocs: `$...$` and `$$...$$` become MathML, which browsers draw themselves; in code nothing does."""

import re
from typing import Any, Final
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor

__all__ = ["Formulas", "on_config"]

_DISPLAYED: Final = r"(?<!\\)\$\$(.+?)\$\$"
_INLINE: Final = r"(?<![\\$\w])\$(?![\s$])([^$]*?[^\s$\\])\$(?![\d$])"
_BEFORE_ESCAPES_AFTER_CODE: Final = 185  # Python-Markdown reads `code` at 190 and backslashes at 180


class _Formula(InlineProcessor):
    def __init__(self, pattern: str, md: Markdown, display: str) -> None:
        super().__init__(pattern, md)
        self._display = display

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Element | str, int, int]:  # type: ignore[override]
        """See `InlineProcessor`."""
        return self.md.htmlStash.store(convert(m.group(1).strip(), display=self._display)), m.start(0), m.end(0)


class Formulas(Extension):
    """Of Python-Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:
        """See `Extension`."""
        md.inlinePatterns.register(_Formula(_DISPLAYED, md, "block"), "displayed", _BEFORE_ESCAPES_AFTER_CODE + 1)
        md.inlinePatterns.register(_Formula(_INLINE, md, "inline"), "formula", _BEFORE_ESCAPES_AFTER_CODE)


def on_config(config: Any, **_: Any) -> Any:
    """Of mkdocs."""
    config["markdown_extensions"].append(Formulas())
    return config
