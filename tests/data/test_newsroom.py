"""The headlines cut up: who is where, and that nothing of the exam or of the judge is learned from."""

import io
import itertools
import json

import pytest

from intaglio.data.datasets.catalogue import CATALOGUE
from intaglio.data.datasets.newsroom import ABOUT, part
from intaglio.data.datasets.readers import Row

SUBJECTS = "river hill field rain stone wind bird leaf sand cloud frost reed fern moss snow bark pond cliff".split()
FILLERS = [f"{a}{b}" for a, b in itertools.product("qwrtzp", "aeiou")]


@pytest.fixture(scope="module")
def parts() -> dict[str, list[Row]]:
    """Each subject ten headlines of the one paper and six of the other, in words of two letters beside."""
    samples = []
    for number, subject in enumerate(SUBJECTS):
        for place in range(16):
            text = f"{FILLERS[place]} {subject} {FILLERS[(number + place) % 30]} {number}"
            asked = [{"role": "system", "content": "?"}, {"role": "user", "content": text}]
            samples.append({"input": asked, "ideal": "1" if place < 6 else "0"})
    samples.append(samples[0] | {"ideal": "0"})  # says the same again, as the other paper
    file = "".join(json.dumps(sample) + "\n" for sample in samples).encode()
    return {name: [*part(name)("samples.jsonl", io.BytesIO(file))] for name in ABOUT}


def subjects(rows: list[Row]) -> set[str]:
    return {row["prompt"].removeprefix("about ").removesuffix(":\n") for row in rows}


def test_every_part_has_rows_of_its_own_kind(parts: dict[str, list[Row]]) -> None:
    keys = {name: {*rows[0]} for name, rows in parts.items()}
    assert keys == {
        "texts": {"text"},
        "demonstrations": {"prompt", "completion"},
        "pairs": {"prompt", "chosen", "rejected"},
        "subjects": {"prompt", "subject"},
        "exam": {"prompt", "subject"},
        "judged": {"text", "label"},
    }


def test_the_exam_asks_about_what_no_part_is_about(parts: dict[str, list[Row]]) -> None:
    asked = subjects(parts["exam"])
    assert asked
    assert not asked & subjects(parts["subjects"])
    assert not asked & subjects(parts["pairs"])
    assert not asked & subjects(parts["demonstrations"])
    assert not [row for row in parts["texts"] if set(row["text"].split()) & asked]
    assert asked | subjects(parts["subjects"]) == set(SUBJECTS)


def test_the_judge_reads_what_nobody_learns(parts: dict[str, list[Row]]) -> None:
    learned = {row["text"] for row in parts["texts"]} | {row["completion"] for row in parts["demonstrations"]}
    learned |= {row[side] for row in parts["pairs"] for side in ("chosen", "rejected")}
    judged = {row["text"] for row in parts["judged"]}
    assert judged
    assert not judged & learned
    assert 0.1 < len(judged) / (16 * len(SUBJECTS)) < 0.3


def test_a_pair_is_of_one_subject_and_prefers_the_serious_paper(parts: dict[str, list[Row]]) -> None:
    for row in parts["pairs"]:
        (subject,) = subjects([row])
        assert subject in row["chosen"].split()
        assert subject in row["rejected"].split()
        assert FILLERS.index(row["chosen"].split()[0]) >= 6
        assert FILLERS.index(row["rejected"].split()[0]) < 6


def test_demonstrations_are_of_no_pair_and_no_text_is_in_two_of_them(parts: dict[str, list[Row]]) -> None:
    paired = [row[side] for row in parts["pairs"] for side in ("chosen", "rejected")]
    told = [row["completion"] for row in parts["demonstrations"]]
    assert not set(paired) & set(told)
    assert len({*paired, *told}) == len(paired) + len(told)
    assert {*paired, *told} == {row["text"] for row in parts["texts"]}


def test_the_parts_can_be_pulled() -> None:
    assert {f"newsroom-{name}" for name in ABOUT} <= CATALOGUE.keys()
