"""Data sets that are made here or out of Debian packages: the same rows every time, and right ones."""

import datetime
import io
import json
import re
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path

import pytest

from intaglio.data.datasets import debian, parallel_texts, pull_data
from intaglio.data.datasets.catalogue import CATALOGUE, DataSet
from intaglio.data.datasets.generated import _FORMS, LOCALES, _pattern, _written, arithmetic, copying, dates
from intaglio.data.datasets.parallel_texts import _places, _slots, libreoffice_help
from intaglio.data.datasets.readers import tagged_sentences
from intaglio.errors import UserError


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return list(islice(dates(tmp_path_factory.mktemp("dates")), 1000))


def test_dates_are_unique_four_digit_and_the_same_every_time(drawn: list[dict[str, str]], tmp_path: Path) -> None:
    assert drawn[:20] == list(islice(dates(tmp_path), 20))
    assert len({row["completion"] for row in drawn}) == len(drawn)
    assert {row["locale"] for row in drawn} == set(LOCALES)
    for row in drawn:
        day = datetime.date.fromisoformat(row["completion"])
        assert str(day.year) in row["prompt"]
        assert "\u202f" not in row["prompt"]


def test_the_locale_stands_before_what_has_no_name_of_a_month(drawn: list[dict[str, str]]) -> None:
    bare = [row["prompt"] for row in drawn if re.fullmatch(r"[\d\W]+", row["prompt"])]
    assert bare
    assert all(re.match(r"\d{4}", text) for text in bare)
    assert any(row["prompt"].startswith("[en] ") and row["form"] == "short" for row in drawn)


def test_no_text_means_two_days() -> None:
    import babel.dates as babel

    meant = defaultdict[str, set[str]](set)
    for locale in LOCALES:
        for form in _FORMS:
            pattern = _pattern(babel, locale, form)
            for month, number in product(range(1, 13), (1, 2, 3, 11, 12)):  # what may be a month and a day
                day = datetime.date(2024, month, number)
                meant[_written(babel, day, locale, pattern)].add(day.isoformat())
    assert not [text for text, days in meant.items() if len(days) > 1]


def test_sums_are_right_and_none_comes_twice(tmp_path: Path) -> None:
    rows = list(arithmetic(tmp_path))
    assert rows[:20] == list(islice(arithmetic(tmp_path), 20))
    tasks = [re.fullmatch(r"What is (\d+) ([-+x]) (\d+)\? .*", row["prompt"][0]["content"]) for row in rows]
    assert len({task[0] for task in tasks if task}) == len(rows) == 6_000 + 13 * 13
    for task, row in zip(tasks, rows, strict=True):
        assert task is not None
        a, b = int(task[1]), int(task[3])
        assert row["answer"] == str({"+": a + b, "-": a - b, "x": a * b}[task[2]])
        assert int(row["answer"]) >= 0
    kinds = [task[2] for task in tasks[:1000] if task]
    assert {"+", "-", "x"} == set(kinds)


def test_copying_has_every_length_as_often(tmp_path: Path) -> None:
    rows = list(copying(tmp_path))
    lengths = [row["length"] for row in rows]
    assert {lengths.count(length) for length in range(1, 61)} <= {333, 334}
    assert all(row["prompt"] == row["completion"] and len(row["prompt"]) == row["length"] for row in rows)


def page(*paragraphs: tuple[str, str]) -> bytes:
    inside = "".join(f'<p id="par_id{key}" class="x" dir="auto">{text}</p>\n' for key, text in paragraphs)
    return f"<html><body>{inside}</body></html>".encode()


HELP = "usr/share/libreoffice/help/"
ENGLISH = [
    ("1", "Opens the <b>selected</b> file &amp; more."),
    ("2", "Too short."),
    ("3", "Press <span class='switchinline'>a key</span> now or never."),
    ("4", "The value x = 3 is set here."),
    ("5", "Opens the selected file &amp; more."),
    ("6", "Not translated in any other way."),
    ("7", "A long text that has a short one."),
]
GERMAN = [
    ("1", "Öffnet die gewählte Datei\n und mehr."),
    ("2", "Zu kurz."),
    ("3", "Drücken Sie jetzt oder nie eine Taste."),
    ("4", "Der Wert x = 3 wird hier gesetzt."),
    ("5", "Öffnet die gewählte Datei."),
    ("6", "Not translated in any other way."),
    ("7", "Kurz."),
]


def test_help_is_matched_and_cleaned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def files(package: str, folder: Path, instead: str) -> Iterator[tuple[str, bytes]]:
        language, side = ("en-US", ENGLISH) if package == "libreoffice-help-en-us" else ("de", GERMAN)
        yield f"{HELP}{language}/text/shared/a.html", page(*side)
        yield f"{HELP}{language}/media/b.html", page(("9", "Nothing of the kind is read."))

    monkeypatch.setattr(parallel_texts, "debian_files", files)
    rows = list(libreoffice_help("de", (0.4, 2.5))(tmp_path))
    assert rows == [{"prompt": "Opens the selected file & more.", "completion": "Öffnet die gewählte Datei und mehr."}]


def test_without_apt_it_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UserError, match=r"libreoffice-help-en-us: needs apt-get.*; take the data set bible-en-es"):
        list(libreoffice_help("de", (0.4, 2.5))(tmp_path))


def test_a_package_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("apt-get", "dpkg-deb"):
        (folder / name).write_text("#!/bin/sh\necho 'E: Unable to locate package x' >&2\nexit 100\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(UserError, match="x: apt-get: Unable to locate package x; run apt-get update, or take"):
        list(debian.debian_files("x", tmp_path / "out", "dates"))


def test_verses_lie_behind_their_book_and_chapter() -> None:
    keys = [(1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1)]
    assert list(_places(keys)) == [4, 5, 7, 10]


def test_slots_of_a_sword_module() -> None:
    texts = [b"EN el principio", b"", b"Y la tierra"]
    packed = zlib.compress(b"".join(texts))
    blocks = struct.pack("<III", 0, len(packed), sum(map(len, texts)))
    starts = [0, len(texts[0]), len(texts[0])]
    verses = b"".join(struct.pack("<IIH", 0, at, len(text)) for at, text in zip(starts, texts, strict=True))
    assert _slots(blocks, verses, packed) == [text.decode() for text in texts]


def test_tagged_sentences_keep_the_part_of_speech() -> None:
    line = "\tThe/at-hl jury/nn-tl wasn't/bedz* 1/2/cd de/fw-in gonna/vbg+to --/-- */* ,/,\n\n"
    (row,) = tagged_sentences("ca01", io.BytesIO(line.encode()))
    assert row["tokens"] == ["The", "jury", "wasn't", "1/2", "de", "gonna", "--", "*", ","]
    assert row["tags"] == ["at", "nn", "bedz", "cd", "in", "vbg", "--", "*", ","]


def test_what_is_made_is_pulled_once_and_says_where_it_is_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(folder: Path) -> Iterator[dict[str, str]]:
        assert folder.is_dir()
        made.append(folder)
        yield from ({"prompt": "a", "completion": "b"} for _ in range(2))

    made: list[Path] = []
    entry = DataSet("a set", "none", num_bytes=1, make=make, origin="made here")
    monkeypatch.setitem(CATALOGUE, "toy-set", entry)
    monkeypatch.setenv("INTAGLIO_HOME", str(tmp_path))
    said: list[str] = []
    folders = {pull_data("toy-set", say=said.append, progress=False) for _ in range(2)}
    (folder,) = folders
    assert [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()] == [
        {"prompt": "a", "completion": "b"}
    ]
    assert "- from: made here" in (folder / "ABOUT.md").read_text()
    assert "from: made here" in said
    assert len(made) == 1
    assert not made[0].exists()
