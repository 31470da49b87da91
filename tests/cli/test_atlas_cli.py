"""`intaglio atlas`: the page, the files, the list and the data."""

import json
from pathlib import Path

import pytest

from chromium import find_chromium
from intaglio.lineage import preset
from running import Run


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A working folder and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INTAGLIO_HOME", str(tmp_path / "home"))


def test_one_figure_as_a_page(run: Run, tmp_path: Path) -> None:
    ran = run("atlas", "--only", "masks")
    assert (ran.status, ran.out) == (0, "atlas.html\n")
    text = (tmp_path / "atlas.html").read_text("utf-8")
    assert "intaglio atlas --only masks" in text
    assert "family-tree" not in text
    assert [file.name[:6] for file in (tmp_path / "home" / "atlas").iterdir()] == ["masks-"]


def test_files_in_both_languages(run: Run, tmp_path: Path) -> None:
    assert run("atlas", "--only", "masks", "--only", "family-tree", "--out", "figures").out == "figures/atlas.html\n"
    names = {file.name for file in (tmp_path / "figures").iterdir()}
    assert {"atlas.html", "masks.svg", "masks.zh.svg", "family-tree.svg", "generation-gpt1.svg"} <= names
    assert {"masks-1.svg", "masks-9.zh.svg"} <= names, "each panel of several"
    assert "family-tree-1.svg" not in names, "its panel is the figure"
    assert "掩码" in (tmp_path / "figures" / "masks.zh.svg").read_text("utf-8")


def test_data_as_json(run: Run, tmp_path: Path) -> None:
    found = json.loads(run("atlas", "--only", "cache-bytes", "--json").out)
    spec = preset("gpt3-175b").spec
    assert found["cache-bytes"]["known"]["gpt3-175b"][0] == [512, spec.kv_cache_bytes(512)]
    assert not (tmp_path / "atlas.html").exists()


def test_the_list(run: Run) -> None:
    lines = run("atlas", "--list").out.splitlines()
    assert lines[0] == "family-tree          The family tree · 家谱"
    rows = json.loads(run("atlas", "--list", "--json").out)
    assert len(rows) == len(lines)
    assert rows[0]["title"] == {"en": "The family tree", "zh": "家谱"}


def test_what_is_missing_is_said_and_the_rest_is_drawn(run: Run, tmp_path: Path) -> None:
    ran = run("atlas", "--only", "attention-maps", "--only", "gates")
    assert ran.status == 0
    assert "attention-maps: not drawn: model 'smollm2-135m-instruct' is not here; intaglio pull" in ran.err
    text = (tmp_path / "atlas.html").read_text("utf-8")
    assert "is not here" in text
    assert "SwiGLU" in text


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium here")
def test_pictures_as_png(run: Run, tmp_path: Path) -> None:
    assert run("atlas", "--only", "shared-heads", "--out", "figures", "--png").status == 0
    for name in ("shared-heads.png", "shared-heads.zh.png"):
        picture = (tmp_path / "figures" / name).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert int.from_bytes(picture[16:20]) == 2 * (820 + 32), "two panels beside each other, at twice their size"


def test_png_needs_a_browser(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "no Chromium here" in run("atlas", "--only", "shared-heads", "--out", "f", "--png").err


def test_an_unknown_name_is_refused(run: Run) -> None:
    assert "did you mean masks or" in run("atlas", "--only", "mask").refusal
