"""Reading the user's files: every kind, packed or not, and what becomes of those that cannot be read."""

import gzip
import json
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from intaglio.data.readers import read_rows
from intaglio.errors import UserError

arrow: Any = import_module("pyarrow")
parquet: Any = import_module("pyarrow.parquet")
zstandard: Any = import_module("zstandard")

PACK: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}
ROWS = [{"text": "one é 你"}, {"text": 'two "quoted", with\na line break'}]


def values(source: Any) -> list[Any]:
    return [row.value for row in read_rows(source)]


def lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


CSV = '"text"\n"one é 你"\n"two ""quoted"", with\na line break"\n'.encode()
KINDS = {
    ".jsonl": (lines(ROWS), [":1", ":2"]),
    ".json": (json.dumps(ROWS).encode(), ["#0", "#1"]),
    ".csv": (CSV, [":2", ":3"]),
}


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("packing", list(PACK))
@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_gives_the_same_rows(tmp_path: Path, kind: str, packing: str, bom: bytes) -> None:
    content, places = KINDS[kind]
    pack = PACK[packing]
    file = write(tmp_path / f"rows{kind}{packing}", pack(bom + content))
    rows = list(read_rows(file))
    assert [row.value for row in rows] == ROWS
    assert [row.where for row in rows] == [f"{file}{place}" for place in places]


def test_parquet(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    chats = [{"messages": [{"role": "user", "content": "é"}]}, {"messages": [{"role": "user", "content": "b"}]}]
    parquet.write_table(arrow.Table.from_pylist(chats * 700), file)
    rows = list(read_rows(file))
    assert [row.value for row in rows] == chats * 700
    assert rows[1399].where == f"{file}#1399"
    with pytest.raises(UserError, match=r"bad\.parquet: not a Parquet file"):
        values(write(tmp_path / "bad.parquet", b"PAR1 no"))
    with pytest.raises(UserError, match="unpack it first"):
        values(write(tmp_path / "rows.parquet.gz", gzip.compress(file.read_bytes())))


def test_a_library_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (("pyarrow", "rows.parquet"), ("zstandard", "rows.jsonl.zst")):
        monkeypatch.setitem(__import__("sys").modules, module, None)
        with pytest.raises(UserError, match=rf"{name}: .*needs {module}.*pip install intaglio\[train\]"):
            values(write(tmp_path / name, b"x"))


def test_json_of_other_shapes(tmp_path: Path) -> None:
    assert values(write(tmp_path / "a.json", json.dumps({"data": ROWS}).encode())) == ROWS
    assert values(write(tmp_path / "b.json", json.dumps(ROWS[0]).encode())) == ROWS[:1]
    mislabelled = list(read_rows(write(tmp_path / "c.json", lines(ROWS))))
    assert [(row.value, row.where) for row in mislabelled] == [(ROWS[i], f"{tmp_path}/c.json:{i + 1}") for i in (0, 1)]
    assert values(write(tmp_path / "d.jsonl", b'"a text"\n\n  \n"another"')) == ["a text", "another"]


def test_a_folder_is_read_to_the_bottom_and_says_what_it_left_out(tmp_path: Path) -> None:
    write(tmp_path / "b" / "two.txt", b"two\r\n")
    write(tmp_path / "a.jsonl", lines(ROWS[:1]) + b"broken\n[1]\n" + lines(ROWS[1:]))
    write(tmp_path / "c.txt", b"\xff\xfe")
    write(tmp_path / "d.txt", b"\0\1")
    write(tmp_path / "e.txt", b"\n")
    write(tmp_path / "f.png", b"x")
    write(tmp_path / "g.json", b'[\n{"a":]')
    write(tmp_path / "h.jsonl.gz", gzip.compress(lines(ROWS * 99))[:-9])
    write(tmp_path / ".hidden.txt", b"no")
    write(tmp_path / ".git" / "x.txt", b"no")
    rows = read_rows(tmp_path)
    read = [row.value for row in rows]
    assert [row for row in read if row not in ROWS] == ["two\r\n"]
    assert read[:2] == ROWS
    reasons = {os.path.relpath(skipped.where, tmp_path): skipped.reason for skipped in rows.skipped}
    assert reasons.pop("h.jsonl.gz").startswith("corrupt or cut off")
    assert reasons == {
        "a.jsonl:2": "not valid JSON: Expecting value (column 1)",
        "a.jsonl:3": "an object or a text is expected, not list",
        "c.txt": "not UTF-8 text",
        "d.txt": "binary",
        "e.txt": "an empty document",
        "f.png": "of another kind (.png)",
        "g.json:2": "not valid JSON: Expecting value",
    }


def test_links_that_lead_back_are_followed_once(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere" / "far.txt", b"far").parent
    folder = write(tmp_path / "data" / "near.txt", b"near").parent
    (folder / "up").symlink_to(folder)
    (folder / "far").symlink_to(elsewhere)
    (folder / "self.txt").symlink_to(folder / "self.txt")
    (folder / "twin.txt").symlink_to(folder / "near.txt")
    os.mkfifo(folder / "pipe.txt")
    rows = read_rows(folder)
    assert sorted(str(row.value) for row in rows) == ["far", "near"]
    reasons = [skipped.reason for skipped in rows.skipped]
    assert reasons == [
        "not a file",
        "unreadable: Too many levels of symbolic links",
        f"the same file as {folder}/near.txt",
    ]


def test_a_folder_that_is_closed_is_not_passed_over_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "open" / "a.txt", b"a")
    closed = write(tmp_path / "closed" / "b.txt", b"b").parent
    scandir = os.scandir

    def guarded(path: Any) -> Any:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(closed))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    rows = read_rows(tmp_path)
    assert [row.value for row in rows] == ["a"]
    assert [(skipped.where, skipped.reason) for skipped in rows.skipped] == [
        (str(closed), "a folder that cannot be read")
    ]


def test_a_glob_reads_source_code(tmp_path: Path) -> None:
    write(tmp_path / "x" / "a.py", b"print()\n")
    write(tmp_path / "x" / "b.md", b"# b")
    write(tmp_path / "x" / "c.py", b"\xff")
    rows = read_rows(f"{tmp_path}/**/*.py")
    assert [row.value for row in rows] == ["print()\n"]
    assert [skipped.reason for skipped in rows.skipped] == ["not UTF-8 text"]
    assert values(tmp_path / "x" / "b.md") == ["# b"]
    with pytest.raises(UserError, match=r"no data \(2 left out.*another kind \(\.py\)|no data \(3 left out"):
        read_rows(tmp_path)


BAD = {
    "a.jsonl": (b'{"a": 1}\n{"a": \n', ":2: not valid JSON"),
    "b.jsonl": (b'{"a": 1}\n\n7\n', ":3: an object or a text is expected, not int"),
    "c.jsonl": (b'{"a": "\\ud83d"}\n', ":1: not valid JSON: half of a surrogate pair"),
    "d.jsonl": (b"[" * 100_000, ":1: not valid JSON"),
    "e.jsonl": (b"9" * 5000, ":1: not valid JSON"),
    "f.jsonl": (b'{"a": "\xff"}\n', ":1: not UTF-8 text"),
    "g.json": (b'[{"a": 1},\n{"a" 2}]', ":2: not valid JSON"),
    "h.csv": (b"a,b\n1,2\n1,2,3\n", ":3: 3 cells where the first line names 2 columns"),
    "i.csv": (b"a,a\n1,2\n", ":1: the first line names 'a' twice"),
    "j.csv": (b'a,b\n1,"2\n', ":2: not valid CSV"),
    "k.csv": (b"a,b\n1,\xff\n", ":2: not UTF-8 text"),
    "l.txt": (b"fine\n\nnot \xff\n", ": not UTF-8 text (line 3)"),
    "m.txt": (b"", ": an empty document"),
    "n.zst": (b"not zstandard", ": corrupt or cut off"),
    "o.gz": (b"not gzip", ": corrupt or cut off"),
    "p.csv": (b"", ":1: the first line names no column"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_a_named_file_must_be_whole(tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    file = write(tmp_path / name, content)
    with pytest.raises(UserError) as caught:
        values(file)
    assert str(caught.value).startswith(f"{file}{message}")
    assert list(read_rows(file, keep_going=True)) == [] or name in ("a.jsonl", "b.jsonl", "h.csv")


@pytest.mark.parametrize("cut", [5, 50, 3000])
def test_packed_files_of_several_parts_that_are_cut_off(tmp_path: Path, cut: int) -> None:
    text = os.urandom(3000).hex()
    for ending in (".gz", ".zst"):
        pack = PACK[ending]
        whole = pack(text.encode()) + pack(b"second part")
        assert values(write(tmp_path / f"a.txt{ending}", whole)) == [text + "second part"]
        with pytest.raises(UserError, match="corrupt or cut off"):
            values(write(tmp_path / f"b.txt{ending}", whole[:-cut]))


def test_large_cells_and_long_lines(tmp_path: Path) -> None:
    long = "x" * 300_000
    assert values(write(tmp_path / "a.csv", f"text\n{long}\n".encode())) == [{"text": long}]
    assert values(write(tmp_path / "b.jsonl", lines([{"text": long}]))) == [{"text": long}]


def test_nothing_there(tmp_path: Path) -> None:
    for source in (tmp_path / "none.jsonl", f"{tmp_path}/*.jsonl"):
        with pytest.raises(UserError, match="no such file or folder, and no file matches it"):
            read_rows(source)
    with pytest.raises(UserError, match="the folder is empty"):
        read_rows(tmp_path)
    assert values(write(tmp_path / "odd[1].jsonl", lines(ROWS))) == ROWS  # a name that looks like a glob


def test_rows_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", lines(ROWS) + b"broken")
    rows = read_rows(file)
    assert [next(rows).value, next(rows).value] == ROWS
    with pytest.raises(UserError, match=":3: not valid JSON"):
        next(rows)
