"""JSON a line: read whole, or as far as it was written."""

import json
from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.files import read_begun_lines, read_json_lines, write_json_lines

ROWS = [{"text": "one\u2028two\u0085three\x0cfour\nfive"}, ["跑"], None, 3]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    write_json_lines(file, ROWS)
    assert read_json_lines(file) == read_begun_lines(file) == ROWS


def test_blank_lines_are_none(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'\n{"a": 1}\r\n  \n{"a": 2}')
    assert read_json_lines(file) == read_begun_lines(file) == [{"a": 1}, {"a": 2}]


def test_a_line_that_is_none_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"a": 1}\n\n{"a": \n{"a": 3}\n')
    with pytest.raises(UserError, match=r"rows\.jsonl:3: not valid JSON"):
        read_json_lines(file)


@pytest.mark.parametrize("cut", range(1, 20))
def test_what_was_cut_off_is_left_out(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "log.jsonl"
    whole = "".join(json.dumps({"step": step}) + "\n" for step in (1, 2))
    file.write_text(whole[:-cut])
    kept = whole[:-cut].count("}")
    assert read_begun_lines(file) == [{"step": 1}, {"step": 2}][:kept]
