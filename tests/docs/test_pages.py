"""Our pages point at what is there, quote what stands where they say, and show the same code in Chinese."""

import re
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from doc_pages import ROOT, Page

yaml = pytest.importorskip("mkdocs.utils.yaml", reason="the site's packages are in the extra `docs`")

DOCS = ROOT / "docs"
PAGES = [Page(path) for path in [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md"))]]
LINK = re.compile(r"\]\((?!\w+:)(?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")
BOTH_LANGUAGES = sorted(
    path
    for folder in ("tutorials", "concepts")
    for path in (DOCS / folder).glob("*.md")
    if not path.name.endswith(".zh.md")
)


def anchors(page: Page) -> set[str]:
    """Of its headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.+)$", page.prose, re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading)).strip().lower() for heading in headings]
    return {heading.replace(" ", "-") for heading in plain} | set(re.findall(r'id="([^"]+)"', page.prose))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Page) -> None:
    for link in LINK.finditer(re.sub(r"`[^`\n]*`", "", page.prose)):
        target = page.path if not link["path"] else page.path.parent / unquote(link["path"])
        assert target.exists(), f"{page.name}: {link[0]}"
        if link["anchor"] and target.suffix == ".md" and "reference" not in target.parts:
            assert unquote(link["anchor"][1:]) in anchors(Page(target.resolve())), f"{page.name}: {link[0]}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_quoted_code_stands_in_its_file(page: Page) -> None:
    for fence in page.fences:
        quoted = fence.value("title")
        if quoted and "/" in quoted:
            lines = fence.body.splitlines()
            assert stand_in_a_row(lines, (ROOT / quoted).read_text(encoding="utf-8").splitlines()), (
                f"{page.name}:{fence.line}: not in {quoted}"
            )
            assert len(lines) <= 30, f"{page.name}:{fence.line}: {len(lines)} lines"


def stand_in_a_row(quoted: list[str], source: list[str]) -> bool:
    """Whether these lines, all moved to the right by as much, are lines of the source."""
    first = next(line for line in quoted if line.strip())
    at = quoted.index(first)
    for start, line in enumerate(source):
        indent = len(line) - len(first)
        if line == " " * indent + first and start >= at:
            moved = [" " * indent + one if one.strip() else "" for one in quoted]
            if source[start - at : start - at + len(quoted)] == moved:
                return True
    return False


def test_what_does_not_stand_in_the_source_is_found() -> None:
    source = ["def f():", "    a = 1", "", "    return a"]
    assert stand_in_a_row(["a = 1", "", "return a"], source)
    assert not stand_in_a_row(["a = 1", "return a"], source)
    assert not stand_in_a_row(["a = 2", "", "return a"], source)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_stands_in_a_fence(page: Page) -> None:
    """One that is only indented would be run by nobody."""
    assert not re.findall(r"^ {4}(?:intaglio|make|pip|torchrun) .*", page.prose, re.MULTILINE)


@pytest.mark.parametrize("path", BOTH_LANGUAGES, ids=lambda path: path.stem)
def test_the_chinese_page_shows_the_same_code(path: Path) -> None:
    chinese = path.with_suffix(".zh.md")
    assert chinese.exists()
    ours, theirs = ([(fence.info, bare(fence.body)) for fence in Page(one).fences] for one in (path, chinese))
    assert ours == theirs


def bare(body: str) -> list[str]:
    """Code without its comments, which may be translated."""
    return [re.sub(r"(^|\s+)# .*$", "", line) for line in body.splitlines()]


def test_every_page_is_in_the_navigation_once() -> None:
    with (ROOT / "mkdocs.yml").open(encoding="utf-8") as file:
        listed = Counter(listed_pages(yaml.yaml_load(file)["nav"]))
    assert not [page for page, times in listed.items() if times > 1]
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if not path.name.endswith(".zh.md")}
    assert set(listed) == there | {"contributing.md", "changelog.md"}


def listed_pages(nav: Any) -> list[str]:
    """The leaves of a navigation."""
    if isinstance(nav, str):
        found = (path.relative_to(DOCS).as_posix() for path in DOCS.glob(nav) if not path.name.endswith(".zh.md"))
        return [*found] if "*" in nav else [nav]
    values = nav.values() if isinstance(nav, dict) else nav
    return [page for value in values for page in listed_pages(value)]
