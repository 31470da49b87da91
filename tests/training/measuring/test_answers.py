"""Held-out answers: what is asked, what counts, and that the untuned and the tuned are read alike."""

import json
from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.specs import validate
from intaglio.training.measuring.answers import Answers, AnswersSpec, Exam, compare
from toy_llms import ANSWER, save_parrot


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Ten questions; the parrot's answer is right for the even ones."""
    path = tmp_path / "rows.jsonl"
    lines = [
        {
            "messages": [
                {"role": "user", "content": f"q{i}"},
                {"role": "assistant", "content": f"{'QUICK' if i % 2 == 0 else 'SLOW'} BROWNé"},
            ]
        }
        for i in range(10)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def exam_of(source: Path, held_out: list[int], **more: object) -> Exam:
    spec = validate(AnswersSpec, {"pattern": r"(\w+) BROWNé", **more})
    return Exam(spec, source, [f"{source}:{i + 1}" for i in held_out])


def test_only_held_out_rows_are_asked(rows: Path) -> None:
    exam = exam_of(rows, [1, 2, 4])
    assert [question.messages[0]["content"] for question in exam.questions] == ["q1", "q2", "q4"]
    assert len(exam.examples) == 7
    assert exam.references == ["SLOW", "QUICK", "QUICK"]
    assert exam.most_frequent() == pytest.approx(2 / 3)
    assert len(exam_of(rows, [1, 2, 4], rows=2).questions) == 2


def test_answers_are_generated_extracted_and_compared(rows: Path, tmp_path: Path) -> None:
    from intaglio.checkpoints.models import load_model, load_tokenizer

    parrot = save_parrot(tmp_path / "parrot", context=256)
    model, tokenizer = load_model(parrot), load_tokenizer(parrot)
    model.train()
    exam = exam_of(rows, [0, 1, 2, 3, 4], max_tokens=20, batch=2)
    for shots in (0, 2):
        taken = exam.take(model, tokenizer, shots)
        assert taken.texts == [ANSWER] * 5
        assert taken.correct == [True, False, True, False, True]
    assert model.training


def test_an_answer_must_match_whole(rows: Path) -> None:
    exam = exam_of(rows, [0])
    assert exam._extract(" QUICK BROWNé\n") == "QUICK"
    assert exam._extract("Well, QUICK BROWNé") == ""
    assert exam._extract("") == ""


def test_a_comparison_has_intervals(rows: Path) -> None:
    exam, said = exam_of(rows, list(range(10))), list[str]()
    taken = {"untuned": Answers([""] * 10, [False] * 10), "tuned": Answers([""] * 10, [True] * 9 + [False])}
    report = compare(exam, taken, said.append)
    assert report["untuned"]["exact_match"] == 0
    gain = report["tuned over untuned"]
    assert gain["difference"] == pytest.approx(0.9)
    assert 0.6 < gain["low"] < 0.9 < gain["high"] <= 1
    assert any("tuned over untuned: +90.0%" in line for line in said)


def test_a_pattern_without_a_group_is_refused() -> None:
    with pytest.raises(UserError, match="no group"):
        validate(AnswersSpec, {"pattern": "Type"})
