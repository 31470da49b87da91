"""`make docs` builds without a warning, and what it builds needs nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import intaglio
from doc_pages import ROOT

pytest.importorskip("mkdocs", reason="the site's packages are in the extra `docs`")
LOADED = re.compile(r"""<(?:script|img|iframe|source)[^>]+src=["']?https?:|<link[^>]+(?:stylesheet|icon)[^>]+https?:""")


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    pages = {
        page.relative_to(tmp_path).as_posix(): page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")
    }
    assert not [name for name, page in pages.items() if LOADED.search(page)]
    assert not [name for name, page in pages.items() if re.search(r"\$\$|<!-- site: ", page)]
    formula = pages["concepts/attention.html"]
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in formula
    assert 'href="../zh/concepts/attention.html"' in formula
    public = set(re.findall(r'href="\w+\.html#(intaglio[\w.]+)"', pages["reference/python.html"]))
    anchors = {found for page in pages.values() for found in re.findall(r'id="(intaglio[\w.]+)"', page)}
    assert {name.rpartition(".")[2] for name in public} >= set(intaglio.__all__)
    assert public <= anchors
    assert "intaglio data rank" in pages["reference/command-line.html"]
    assert "micro_batch" in pages["reference/recipe.html"]
