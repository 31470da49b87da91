"""Every command of every page is run: at toy size here, as it stands by `make prove` where a page asks for that."""

import re
from pathlib import Path

import pytest

from doc_commands import Reader
from doc_pages import ROOT, Page
from running import unmeasured

PAGES = [
    Page(path)
    for pattern in ("*.md", "tutorials/*.md", "how-to/*.md", "concepts/*.md", "reference/*.md")
    for path in sorted((ROOT / "docs").glob(pattern))
    if not path.name.endswith(".zh.md")
]
WITH_COMMANDS = [page for page in PAGES if re.search(r"^ *```(bash|python)\b", page.text, re.MULTILINE)]
WITH_PROOFS = [page for page in PAGES if re.search(r"^ *```\w+ prove$", page.text, re.MULTILINE)]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_a_page_can_be_followed(
    page: Page, folder: Path, toy_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTAGLIO_HOME", str(toy_home))
    unmeasured(monkeypatch)
    Reader(monkeypatch, capsys).read(page)


@pytest.mark.prove
@pytest.mark.real
@pytest.mark.parametrize("page", WITH_PROOFS, ids=lambda page: page.name)
def test_a_page_can_be_followed_as_it_stands(
    page: Page, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Reader(monkeypatch, capsys, whole=True).read(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_not_run_says_why(page: Page) -> None:
    for fence in page.fences:
        if fence.language == "bash":
            words = fence.info.split()[1:]
            assert not words or words == ["prove"] or fence.reason_not_to_run, f"{page.name}:{fence.line}"
