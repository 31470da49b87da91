"""Runs against the first: paired, refused where the items differ, with the items that changed sides."""

from collections.abc import Mapping, Sequence

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.comparison import compare
from intaglio.evaluation.intervals import bootstrap_mean, paired_difference
from intaglio.evaluation.results import Outcome, Results, Summary, TaskResult
from intaglio.evaluation.translation import translation_gain

RIGHT = [1.0] * 6 + [0.0] * 4


def results(scores: Mapping[str, Sequence[float]], digest: str = "h", **more: Sequence[str]) -> Results:
    tasks = {}
    for name, values in scores.items():
        categories = more.get("categories", [""] * len(values))
        texts = more.get("texts", [""] * len(values))
        outcomes = tuple(
            Outcome(name, str(i), categories[i], "", "", "", ("the cat sat",), {"acc": value}, text=texts[i])
            for i, value in enumerate(values)
        )
        whole = {"bleu": Summary(0, 0, 0, 1)} if "texts" in more else {}
        tasks[name] = TaskResult("choice", digest, "f", outcomes, whole=whole)
    return Results({}, {}, {}, tasks)


def test_the_difference_is_paired_and_says_who_changed_sides() -> None:
    better = [1.0] * 4 + [0.0] + [1.0] * 5
    (one,) = compare({"base": results({"t": RIGHT}), "run": results({"t": better})})
    assert (one.task, one.run, one.base, one.metric, one.items) == ("t", "run", "base", "acc", 10)
    assert (one.score, one.base_score) == (bootstrap_mean(better), bootstrap_mean(RIGHT))
    assert one.difference == paired_difference(better, RIGHT)
    assert (one.gained, one.lost) == (("6", "7", "8", "9"), ("4",))
    assert one.p == pytest.approx(12 / 32)
    assert not one.real
    assert one.as_json()["difference"] == [*one.difference]


def test_a_real_difference_is_told_from_none() -> None:
    (one,) = compare({"base": results({"t": [0.0] * 20}), "run": results({"t": [1.0] * 12 + [0.0] * 8})})
    assert one.real
    assert one.p == pytest.approx(2 / 2**12)


def test_other_scores_have_no_sides() -> None:
    (one,) = compare({"base": results({"t": [0.5, 0.2]}), "run": results({"t": [0.7, 0.1]})})
    assert (one.p, one.gained, one.lost) == (None, (), ())


def test_categories_are_compared_too_and_several_runs_with_the_first() -> None:
    parts = ["a"] * 5 + ["b"] * 5
    runs = {name: results({"t": RIGHT}, categories=parts) for name in ("base", "one", "two")}
    found = compare(runs)
    assert [(one.run, one.category, one.items) for one in found] == [
        *(("one", category, items) for category, items in (("", 10), ("a", 5), ("b", 5))),
        *(("two", category, items) for category, items in (("", 10), ("a", 5), ("b", 5))),
    ]


def test_only_items_that_both_answered_count() -> None:
    (one,) = compare({"base": results({"t": RIGHT[:8]}), "run": results({"t": RIGHT})})
    assert one.items == 8


def test_bleu_of_the_whole_is_compared_by_paired_bootstrap() -> None:
    said = {"base": ["the cat", "a cat sat", "x"], "run": ["the cat sat", "the cat sat", "x"]}
    runs = {name: results({"t": [1.0, 1.0, 0.0]}, texts=texts) for name, texts in said.items()}
    bleu = next(one for one in compare(runs) if one.metric == "bleu")
    expected = translation_gain([said["run"]], [said["base"]], ["the cat sat"] * 3)
    assert bleu.difference == expected["bleu"]
    assert bleu.difference.mean == pytest.approx(bleu.score.mean - bleu.base_score.mean)


def test_runs_over_different_items_are_refused() -> None:
    with pytest.raises(UserError, match="t has other items or another layout than in base"):
        compare({"base": results({"t": RIGHT}), "run": results({"t": RIGHT}, digest="other")})
    with pytest.raises(UserError, match="no task in common with base"):
        compare({"base": results({"t": RIGHT}), "run": results({"u": RIGHT})})
