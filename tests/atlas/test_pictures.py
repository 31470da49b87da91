"""The pictures of README and docs: all there, drawn from the numbers beside them, and those numbers the code's own."""

import json
from pathlib import Path
from typing import Any

import pytest

from intaglio.atlas.book import BOOK
from intaglio.errors import UserError
from intaglio.files import read_json
from script_modules import load_script

pictures = load_script("pictures")


def test_no_picture_is_stale() -> None:
    assert list(pictures.stale()) == [], "make pictures"


@pytest.mark.parametrize("name", sorted(pictures.QUICK))
def test_numbers_are_what_the_code_finds(name: str) -> None:
    if not pictures.kept(BOOK[name]).is_file():
        pytest.skip("no page shows it")
    now = json.loads(json.dumps(BOOK[name].data()))
    assert pictures.alike(read_json(pictures.kept(BOOK[name])), now), "make pictures"


def test_the_readme_shows_four_in_both_languages() -> None:
    pages = [(pictures.ROOT / page).read_text("utf-8") for page in ("README.md", "README.zh-CN.md")]
    english, chinese = (pictures.named(page) for page in pages)
    assert len(english) == 4
    assert [f"{name}.zh" for name in english] == chinese


def test_a_changed_picture_and_a_missing_one_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "PICTURES", tmp_path)
    monkeypatch.setattr(pictures, "shown", lambda: {"masks-1", "masks-1.zh"})
    assert list(pictures.stale()) == [
        "masks: its numbers are not there",
        "masks-1.svg is shown and not there",
        "masks-1.zh.svg is shown and not there",
    ]
    pictures.make([])
    assert list(pictures.stale()) == []
    file = tmp_path / "masks-1.svg"
    file.write_text(file.read_text("utf-8").replace("0", "1", 1), encoding="utf-8")
    (tmp_path / "old.svg").write_text("", encoding="utf-8")
    assert list(pictures.stale()) == ["masks-1.svg is not what the atlas draws", "old.svg: no page shows it"]
    pictures.make([])
    assert list(pictures.stale()) == []


def test_whose_picture_it_is() -> None:
    names = {"kv-cache": "kv-cache", "kv-cache-2.zh": "kv-cache", "generation-gpt2": "family-tree"}
    assert {name: pictures.figure_of(name).name for name in names} == names
    with pytest.raises(UserError, match="no picture 'kv-cash-1'"):
        pictures.figure_of("kv-cash-1")


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ({"a": [1.0, "x", None]}, {"a": [1.0004, "x", None]}, True),
        ({"a": [1.0, "x"]}, {"a": [1.01, "x"]}, False),
        ({"a": 1}, {"b": 1}, False),
        ([1, 2], [1, 2, 3], False),
        ("1", 1, False),
    ],
)
def test_numbers_that_are_alike(ours: Any, theirs: Any, same: bool) -> None:
    assert pictures.alike(ours, theirs) == same


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ("2.10 nats in 1,000 steps", "2.50 nats in 1,000 steps", True),
        ("2.10 nats in 1,000 steps", "4.10 nats in 1,000 steps", False),
        ("3% of them", "5% of them", True),  # two of the last digit
        ("3% of them", "6% of them", False),
        ("a drop to 2e-13", "a drop to 3e-13", True),
        ("a drop to 2e-13", "a drop to 2e-11", False),
        ("LSTM wins by 3", "GRU wins by 3", False),
    ],
)
def test_captions_that_say_the_same(ours: str, theirs: str, same: bool) -> None:
    assert pictures.says_the_same(ours, theirs) == same
