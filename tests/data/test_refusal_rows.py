"""The pairs that teach when to refuse: whole, apart, and without an easy sign of which side is the better one."""

import json
from collections import Counter
from pathlib import Path

from intaglio.data.check import DataCheck
from intaglio.data.preferences import Preference, preferences_of, words_of
from intaglio.data.readers import read_rows

FOLDER = Path(__file__).parents[2] / "recipes" / "refusal"


def pairs(name: str, kind: str | None = None) -> list[Preference]:
    rows = [row for row in read_rows(FOLDER / f"{name}.jsonl") if isinstance(row.value, dict)]
    return [preferences_of(row)[0] for row in rows if kind in (None, row.value["kind"])]  # type: ignore[index]


def test_there_is_nothing_wrong_with_them() -> None:
    check = DataCheck()
    for name in ("train", "held-out"):
        for row in read_rows(FOLDER / f"{name}.jsonl"):
            assert check.look(row) == []


def test_no_request_is_on_both_sides() -> None:
    train, held_out = ({words_of(pair.prompt) for pair in pairs(name)} for name in ("train", "held-out"))
    assert not train & held_out
    assert (len(train), len(held_out)) == (192, 95)


def test_the_readme_counts_right() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    for name in ("train", "held-out"):
        lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        kinds = Counter(json.loads(line)["kind"] for line in lines)
        assert f"| `{name}.jsonl` | {kinds['unsafe']} | {kinds['harmless']} |" in text


def test_neither_length_nor_the_first_words_tell_the_better_side() -> None:
    both = pairs("train") + pairs("held-out")
    longer = sum(len(words_of(pair.chosen)) > len(words_of(pair.rejected)) for pair in both)
    assert 0.4 < longer / len(both) < 0.6
    for kind in ("unsafe", "harmless"):
        some = pairs("train", kind)
        share = sum(len(words_of(pair.chosen)) > len(words_of(pair.rejected)) for pair in some) / len(some)
        assert 0.35 < share < 0.65
    refused = {words_of(pair.chosen)[:5] for pair in pairs("train", "unsafe")}
    assert {words_of(pair.rejected)[:5] for pair in pairs("train", "harmless")} == refused
