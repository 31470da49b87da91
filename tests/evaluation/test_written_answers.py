"""Written answers are scored by every metric a task may ask for, and by nothing else."""

from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.answers import Scored, check_metrics, score_answers, tokenize_of, whole_scores
from intaglio.evaluation.tasks.item import Item, Task
from intaglio.evaluation.translation import sentence_scores, translation_scores


def task(*references: tuple[str, ...], metrics: tuple[str, ...] = (), **fields: object) -> Task:
    items = [Item(str(i), f"Q{i}", references=some, fields=fields) for i, some in enumerate(references)]
    return Task("t", "generation", tuple(items), metrics=metrics)


def test_the_metrics_of_an_item() -> None:
    asked = task(("Paris", "Paris, France"), metrics=("exact_match", "f1", "rouge1", "rouge2", "rougeL"))
    assert score_answers(asked, {"0": " paris.\n"}) == {
        "0": Scored("paris.", {"exact_match": 1, "f1": 1, "rouge1": 1, "rouge2": 0, "rougeL": 1})
    }
    found = score_answers(asked, {"0": "Paris in France"})["0"].scores
    assert found == pytest.approx({"exact_match": 0, "f1": 0.5, "rouge1": 0.8, "rouge2": 0, "rougeL": 0.8})


def test_exact_match_where_nothing_is_said_and_no_row_where_nothing_was_answered() -> None:
    found = score_answers(task(("a",), ("b",)), {"1": "B"})
    assert found == {"1": Scored("B", {"exact_match": 1})}


def test_numbers_and_letters() -> None:
    """Case 44 of serving: gold `B`, answer `B. Paris` is right."""
    gsm = task(("6 * 7\n#### 42",), metrics=("number",))
    assert score_answers(gsm, {"0": "It is 42.0, he said"})["0"] == Scored("42", {"number": 1})
    assert score_answers(gsm, {"0": "no idea"})["0"] == Scored("", {"number": 0})
    letters = task(("B",), metrics=("choice",))
    assert score_answers(letters, {"0": "B. Paris"})["0"] == Scored("B", {"choice": 1})
    assert score_answers(letters, {"0": "ANSWER: [LETTER] ... ANSWER: (C)"})["0"] == Scored("C", {"choice": 0})
    few = task(("B",), metrics=("choice",), letters="AB")
    assert score_answers(few, {"0": "C. Bonn"})["0"] == Scored("", {"choice": 0})


def test_translations_are_scored_one_by_one_and_as_a_whole() -> None:
    asked = task(("the cat sat on the mat",), ("hello there", "hi there"), ("never asked",), metrics=("bleu", "chrf"))
    said = {"0": "the cat sat on a mat", "1": "hello there"}
    rows = score_answers(asked, said)
    assert rows["0"].scores == pytest.approx(
        {f"sentence_{k}": v for k, v in sentence_scores(said["0"], ["the cat sat on the mat"]).items()}
    )
    whole = whole_scores(asked, said)
    expected = translation_scores([*said.values()], [item.references for item in asked.items[:2]])
    assert (whole["bleu"].mean, whole["bleu"].low, whole["bleu"].high, whole["bleu"].n) == (*expected["bleu"], 2)
    assert set(whole) == {"bleu", "chrf"}
    assert whole_scores(task(("a",)), {"0": "a"}) == {}
    assert whole_scores(asked, {}) == {}


def test_chinese_references_are_parted_into_characters() -> None:
    assert tokenize_of([["插入一个框架"], ["在Writer中"], ["x"]]) == "zh"
    assert tokenize_of([["a"], ["b"], ["中"]]) == "13a"
    asked = task(("插入一个框架到页面",), metrics=("bleu",))
    assert score_answers(asked, {"0": "插入一个框架到文档"})["0"].scores["sentence_bleu"] > 50


def test_verifiers_get_the_fields_of_an_item_and_may_have_nothing_to_say(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def short(completions, most):\n"
        "    return [None if not text else float(len(text) <= n) for text, n in zip(completions, most)]\n"
    )
    asked = task(("3",), ("4",), metrics=(f"{file}:short", "arithmetic"), most=5)
    rows = score_answers(asked, {"0": "it is 3", "1": ""})
    assert rows["0"].scores == {f"{file}:short": 0.0, "arithmetic": 1.0}
    assert rows["1"].scores == {"arithmetic": 0.0}


def test_an_unknown_metric_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    check_metrics(("exact_match", "bleu", "arithmetic"))
    with pytest.raises(UserError, match="no metric 'rouge3' of written answers") as caught:
        check_metrics(("f1", "rouge3"))
    assert "rouge" in str(caught.value)
    with pytest.raises(UserError, match="no such file"):
        check_metrics((f"{tmp_path}/none.py:f",))
