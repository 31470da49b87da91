"""Reports as pages that need nothing else: no script, no font and no style from elsewhere."""

from html import escape
from importlib.resources import files

__all__ = ["whole_page"]


def whole_page(title: str, body: str, style: str = "") -> str:
    """A page around `body`, which is HTML; `style` is what it adds to the style that all have."""
    shared = (files("intaglio") / "pages.css").read_text("utf-8")
    head = (
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{shared}{style}</style>",
    )
    lines = ("<!doctype html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", body, "</body>", "</html>")
    return "\n".join(lines) + "\n"
