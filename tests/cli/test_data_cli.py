"""`intaglio data`: a report that points at lines, a clean copy, and conversions that lose nothing."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from running import Run

GOOD = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
LONG = "Tell me about the quick brown fox that jumps over the lazy dog and then goes home"
ROWS: list[Any] = [
    GOOD,
    {"messages": [{"role": "user", "content": LONG}, {"role": "assistant", "content": "No."}]},
    GOOD,
    {"messages": [{"role": "user", "content": LONG + "!"}, {"role": "assistant", "content": "No."}]},
    {"messages": [{"role": "assistant", "content": "red"}]},
    {"promt": "a", "completion": "b"},
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "broken [bold]\n")
    return file


def read(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_report_points_at_lines_within_80_columns(run: Run, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data.parent)
    monkeypatch.setenv("COLUMNS", "80")
    ran = run("data", "check", "rows.jsonl")
    assert (ran.status, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= 80
    for words in (
        "  6 rows: 5 messages",
        "rows.jsonl:7  not valid JSON",
        "rows.jsonl:3  is the row at rows.jsonl:1 again",
        "rows.jsonl:4  says nearly what the row at rows.jsonl:2 says",
        "rows.jsonl:5  the assistant begins",
        "rows.jsonl:6  fits no format (keys: promt, completion)",
        "1 row: exact duplicate of an earlier row",
        "Length in characters",
    ):
        assert words in ran.out
    assert "\x1b" not in ran.out


def test_json_and_a_clean_copy(run: Run, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "clean.jsonl"
    before = data.read_bytes()
    report = json.loads(run("data", "check", data, "--out", out, "--json").out)
    assert report["rows"] == 6
    assert report["rows_by_problem"] == {
        "unreadable": 1,
        "no format": 1,
        "role order": 1,
        "duplicate": 1,
        "near duplicate": 1,
    }
    assert {finding["where"] for finding in report["findings"]} == {f"{data}:{line}" for line in (3, 4, 5, 6, 7)}
    assert report["lengths"]["unit"] == "characters"
    assert (report["clean_rows"], read(out)) == (3, [ROWS[0], ROWS[1], ROWS[3]])
    assert data.read_bytes() == before
    assert f"{out}: exists already" in run("data", "check", data, "--out", out).refusal
    assert f"{data}: exists already" in run("data", "check", data, "--out", data).refusal
    other = tmp_path / "other.jsonl"
    run("data", "check", data, "--out", other, "--drop-near-duplicates")
    assert read(other) == [ROWS[0], ROWS[1]]


def test_with_a_model(run: Run, data: Path, toy_dir: Path, tmp_path: Path) -> None:
    report = json.loads(run("data", "check", data, "--model", toy_dir, "--json").out)
    assert report["lengths"]["unit"] == "tokens"
    assert report["lengths"]["context"] == 256
    assert 0 < report["supervised_share"] < 0.5
    assert report["notes"] == []
    ran = run("data", "check", data, "--model", toy_dir, "--template", "gemma", "--max-length", "40")
    assert ran.status == 0
    assert "! this is not the model's own template" in ran.out
    assert "longer than the context" in ran.out
    template = tmp_path / "mine.jinja"
    template.write_text("{{ oops")
    assert "mine.jinja" in run("data", "check", data, "--model", toy_dir, "--template", template).refusal


def test_nothing_wrong_is_said_too(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "good.json"
    file.write_text(json.dumps([GOOD]))
    ran = run("data", "check", file)
    assert "1 row: 1 messages" in ran.out
    assert "Nothing wrong was found." in ran.out


def test_what_rows_hold_cannot_colour_the_terminal(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    file.write_text(json.dumps([{"\x1b[31m[bold]": 1}]))
    ran = run("data", "check", file)
    assert "\x1b" not in ran.out
    assert "[31m[bold]" in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.jsonl"], "no such file or folder"),
        (["{data}", "--template", "chatml"], "--template: needs a model's tokenizer"),
        (["{data}", "--max-length", "9"], "--max-length: needs a model's tokenizer"),
        (["{data}", "--drop-near-duplicates"], "drops nothing without --out"),
        (["{data}", "--out", "clean.csv"], "we write JSON Lines"),
        (["{data}", "--model", "nowhere"], "unknown model 'nowhere'"),
        (["{empty}"], "there are no rows"),
        (["{broken}"], "no row can be read; the first: not valid JSON"),
    ],
)
def test_mistakes_of_check(run: Run, data: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "broken.jsonl").write_text("{\n")
    places = {"data": data, "empty": tmp_path / "empty.jsonl", "broken": tmp_path / "broken.jsonl"}
    assert message in run("data", "check", *(argument.format(**places) for argument in arguments)).refusal


def test_convert(run: Run, tmp_path: Path) -> None:
    source, out = tmp_path / "alpaca.jsonl.gz", tmp_path / "chats.jsonl"
    source.write_bytes(gzip.compress(b'{"instruction": "hi", "input": "", "output": "hello", "id": 7}\n'))
    ran = run("data", "convert", source, out, "--to", "messages")
    assert ran.out == f"1 row as messages in {out}\n"
    assert read(out) == [{**GOOD, "id": 7}]
    back = tmp_path / "back.jsonl"
    assert json.loads(run("data", "convert", out, back, "--to", "sharegpt", "--json").out)["rows"] == 1
    assert read(back)[0]["conversations"][0] == {"from": "human", "value": "hi"}
    assert "exists already" in run("data", "convert", source, out, "--to", "messages").refusal
    refused = tmp_path / "text.jsonl"
    assert (
        "messages row cannot become text without loss" in run("data", "convert", out, refused, "--to", "text").refusal
    )
    assert not refused.exists()
    assert "did you mean messages" in run("data", "convert", out, refused, "--to", "mesages").refusal


def test_convert_says_what_it_left_out_of_a_folder(run: Run, tmp_path: Path) -> None:
    folder, out = tmp_path / "folder", tmp_path / "chats.jsonl"
    folder.mkdir()
    (folder / "rows.jsonl").write_text(json.dumps(GOOD) + "\nbroken\n")
    ran = run("data", "convert", folder, out, "--to", "messages")
    assert (ran.out, ran.err) == (
        f"1 row as messages in {out} (1 skipped)\n",
        f"skipped {folder}/rows.jsonl:2: not valid JSON: Expecting value (column 1)\n",
    )
    named = folder / "rows.jsonl"
    assert f"{named}:2: not valid JSON" in run("data", "convert", named, tmp_path / "x.jsonl", "--to", "alpaca").refusal


def test_pairs_are_looked_at_and_taken_apart(run: Run, toy_dir: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "pairs.jsonl", tmp_path / "judged.jsonl"
    asked, good, bad = GOOD["messages"][:1], GOOD["messages"][1:], [{"role": "assistant", "content": "no"}]
    source.write_text(json.dumps({"chosen": [*asked, *good], "rejected": [*asked, *bad]}) + "\n")
    report = json.loads(run("data", "check", source, "--model", toy_dir, "--json").out)
    assert (report["formats"], report["rows_by_problem"]) == ({"preference": 1}, {})
    assert report["pairs"] == {"count": 1, "longer_wins": 1.0}
    assert "1; in 100.0% of them the better answer is the longer one" in run("data", "check", source).out
    assert run("data", "convert", source, out, "--to", "unpaired").out == f"2 rows as unpaired in {out}\n"
    assert [row["label"] for row in read(out)] == [True, False]
    assert "1 answers are wanted, 1 are not" in run("data", "check", out).out
    with out.open("a") as file:
        file.write(json.dumps({"prompt": "alone", "completion": "a", "label": False}) + "\n")
    again = run("data", "convert", out, tmp_path / "again.jsonl", "--to", "preference")
    assert again.err == f"skipped {out}:3: none of the answers to its prompt was judged otherwise\n"
    assert read(tmp_path / "again.jsonl") == [{"prompt": asked, "chosen": good, "rejected": bad}]


def test_a_format_may_be_told(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({**GOOD, "prompt": "p", "chosen": "a", "rejected": "bc"}) + "\n")
    assert "1 row: 1 messages" in run("data", "check", file).out
    assert "1 row: 1 preference" in run("data", "check", file, "--format", "preference").out
    assert "--format: there is no format 'pairs'" in run("data", "check", file, "--format", "pairs").refusal
