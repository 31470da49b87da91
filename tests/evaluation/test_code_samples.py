"""Samples of code: what counts as holding together, and the longest run that is shared."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.evaluation import code_samples
from intaglio.evaluation.code_samples import SharedText, judge_code, longest_shared

GOOD = '''def area(shape, scale):
    """Area of a shape.

    A docstring of several lines.
    """
    # scaled
    width = shape.width * scale
    height = shape.height * scale
    if width < 0:
        raise ValueError(
            "negative")

    return width * height
for shape in shapes:
    print(area(shape, 2))
'''


def test_code_that_holds_together() -> None:
    verdict = judge_code(GOOD + "half = a li")
    assert verdict.passes
    assert (verdict.code_lines, verdict.statements) == (9, 8)


def test_the_last_line_is_cut_and_no_other() -> None:
    assert judge_code(GOOD + "x = (1,").parses
    assert not judge_code(GOOD + "x = (1,\n  y").parses


@pytest.mark.parametrize(
    "sample",
    [
        "",
        "x",
        'def f():\n    """' + "words\n" * 20 + '"""\n    return 1\n',  # mostly a docstring
        "# comment\n" * 20 + "x = 1\ny = 2\nz = 3\n",
        "table = [\n" + "    1,\n" * 20 + "]\n",  # one statement
        "def f(:\n" + "    pass\n" * 20,
        "x = 1\0\n" * 20,
        "(" * 5000 + ")" * 5000 + "\n" + "x = 1\n" * 20,
    ],
)
def test_what_does_not_pass(sample: str) -> None:
    assert not judge_code(sample).passes


def plain_longest(samples: list[str], documents: list[str]) -> int:
    """Every run of every sample, looked for."""
    runs = {one[i:j] for one in samples for i in range(len(one)) for j in range(i + 1, len(one) + 1)}
    return max((len(run) for run in runs if any(run in document for document in documents)), default=0)


TEXTS = st.lists(st.text("ab\n", max_size=15) | st.text(max_size=5), max_size=4)


@settings(max_examples=60)
@given(samples=TEXTS, documents=TEXTS)
def test_the_longest_shared_run_is_found(samples: list[str], documents: list[str]) -> None:
    found = longest_shared(samples, documents)
    assert found.length == len(found.text) == plain_longest(samples, documents)
    if found.length:
        assert found.text in samples[found.sample]
        assert any(found.text in document for document in documents)


def test_blocks_hide_nothing_at_their_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_samples, "BLOCK", 8)
    text = "the quick brown fox jumps over the lazy dog"
    found = longest_shared(["nothing", "a lazy brown fox jumps up"], ["x", text])
    assert found == SharedText(17, " brown fox jumps ", 1)


def test_documents_are_apart() -> None:
    assert longest_shared(["spam and eggs"], ["spam an", "d eggs"]).length == 7


def test_a_hash_alone_is_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_samples, "_slot", lambda hashes: hashes & np.uint64(0))
    monkeypatch.setattr(code_samples, "BASE", 1)  # a window's hash is the sum of its characters
    assert longest_shared(["abc"], ["cba"]).length == 1
