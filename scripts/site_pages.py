"""A hook of mkdocs: gathers the site's pages in a folder of its own before anything is built.

Our pages link to each other and to files outside of docs/ as a reader of the repository needs it. In the site, the
pages of the repository's root stand beside the others, any other file that a page names goes along as plain text, and
a folder is described by the layout page. Where a page says `<!-- site: NAME -->` stands what `site_reference` makes.
"""

import posixpath
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from mkdocs.plugins import event_priority

sys.path.insert(0, str(Path(__file__).parent))

from site_reference import MADE

__all__ = ["gather", "on_config", "on_page_markdown", "on_post_build", "on_post_page", "on_post_template"]

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Of the root, and what they are called in the site."""
SOURCES: Final = "source"
IN_ENGLISH: Final = """# {0}

参考手册取自源代码中的文档字符串，只有英文：<a href="../../reference/{0}.html">reference/{0}</a>。
"""
"""What stands in the place of a page of the reference on the Chinese side."""
_SHIM: Final = "https://unpkg.com/iframe-worker/shim"
_LINK: Final = re.compile(r"(?P<before>\]\()(?!\w+:|#)(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?P<after>\))")
_CODE: Final = re.compile(r"(^ *```.*?^ *```+ *$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_FENCE: Final = re.compile(r"^(?P<opens> *```+\w+) (?:file=(?P<file>\"[^\"]*\").*|prove|no-run:.*)$", re.MULTILINE)
_MADE: Final = re.compile(r"<!-- site: ([\w-]+) -->")


def on_config(config: Any, **_: Any) -> Any:
    """Of mkdocs, which calls it once for each language."""
    source = Path(config.docs_dir)
    if source == ROOT / "docs":
        folder = tempfile.TemporaryDirectory(prefix="intaglio-docs-")
        config.extra["gathered"] = folder  # removed when the build lets go of it
        gather(Path(folder.name))
        config.docs_dir = folder.name
        config.watch.append(str(source))
        config.nav = _expanded(config.nav, source)
    return config


def _expanded(nav: Any, folder: Path) -> Any:
    """The navigation with the pages that fit in the place of `*.md`; a page in Chinese is its English one's."""
    if isinstance(nav, list):
        return [_expanded(one, folder) for one in nav]
    if isinstance(nav, dict):
        return {title: _expanded(one, folder) for title, one in nav.items()}
    if "*" not in nav:
        return nav
    found = (path.relative_to(folder).as_posix() for path in sorted(folder.glob(nav)))
    return [name for name in found if not name.endswith(".zh.md")]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Of mkdocs: the first page needs no list of pages beside it."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    return markdown


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Of mkdocs: what searches without a server is ours, and not another server's."""
    return output.replace(_SHIM, posixpath.relpath("site.js", posixpath.dirname(page.url) or "."))


def on_post_template(output: str, template_name: str, **_: Any) -> str:
    """Of mkdocs: the page that says that there is none lies nowhere in particular."""
    return output.replace(_SHIM, "/site.js") if template_name.endswith(".html") else output


@event_priority(-200)  # after the plugins have put all languages into one index
def on_post_build(config: Any, **_: Any) -> None:
    """Of mkdocs: the index for the search without a server is that of all languages."""
    folder = Path(config.site_dir) / "search"
    index = (folder / "search_index.json").read_text(encoding="utf-8")
    (folder / "search_index.js").write_text(f"var __index = {index}", encoding="utf-8")


def gather(folder: Path) -> None:
    """Fills an empty folder with everything that the site is made of."""
    shutil.copytree(ROOT / "docs", folder, dirs_exist_ok=True)
    origins = {path: f"docs/{path.relative_to(folder).as_posix()}" for path in folder.rglob("*.md")}
    origins |= {folder / name: root for root, name in PAGES.items()}
    for path in (folder / "reference").glob("*.md"):
        path.with_suffix(".zh.md").write_text(IN_ENGLISH.format(path.stem), encoding="utf-8")
    for path, origin in origins.items():
        text = (ROOT / origin).read_text(encoding="utf-8")
        text = _FENCE.sub(_plain_fence, _led(text, origin, folder))
        text = _MADE.sub(lambda found: MADE[found[1]](), text)
        path.write_text(text, encoding="utf-8")


def _plain_fence(found: re.Match[str]) -> str:
    """A fence without what only the tests read; the name of a file stands over its text."""
    return f"{found['opens']} title={found['file']}" if found["file"] else found["opens"]


def _led(text: str, origin: str, folder: Path) -> str:
    """The page with links that lead somewhere in the site; what stands in code is left alone."""
    pieces = _CODE.split(text)
    pieces[::2] = [_LINK.sub(lambda found: _link(found, origin, folder), piece) for piece in pieces[::2]]
    return "".join(pieces)


def _link(found: re.Match[str], origin: str, folder: Path) -> str:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), found["path"]))
    place = _place(target)
    if place.startswith(f"{SOURCES}/"):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / target, folder / place)
    anchor = found["anchor"] or "" if place.endswith(".md") and not (ROOT / target).is_dir() else ""
    return (
        f"{found['before']}{posixpath.relpath(place, posixpath.dirname(_place(origin)) or '.')}{anchor}{found['after']}"
    )


def _place(target: str) -> str:
    """Where in the site a file of the repository is."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    if target in PAGES:
        return PAGES[target]
    named = target.lstrip(".").replace(".", "_")  # `x.py.txt` would be a text in a language `py`
    return f"{SOURCES}/{named}.txt" if (ROOT / target).is_file() else "layout.md"
