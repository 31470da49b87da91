"""Published layouts, each with a few rows of our own: what is asked, what is right, and which rows are left out."""

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.framing import Shots, arranged, framed
from intaglio.evaluation.tasks.choice_sets import arc, ceval, cmmlu, hellaswag, mmlu
from intaglio.evaluation.tasks.item import Task
from intaglio.evaluation.tasks.word_problems import gsm8k


def write_csv(path: Path, *records: Sequence[object]) -> None:
    """Records as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(records)


def write_lines(path: Path, rows: Iterable[Any]) -> None:
    """Objects a line each, texts as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")


def write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows as a hub has them."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.Table.from_pylist(rows), path)


def asked(task: Task, place: int = 0, shots: int = 0) -> object:
    """The text in front of the answer, as the task is published."""
    shown = arranged(task, None)
    item = shown.items[place]
    return framed(shown, item, Shots(shown, 0).of(item, shots), chat=False)


def test_mmlu_as_it_was_published(tmp_path: Path) -> None:
    write_csv(
        tmp_path / "test/simple_sums_test.csv", ["1 + 1 = ", 1, 2, 3, 4, "B"], ['Say\n"x"', "x", "y", "z", "w", "A"]
    )
    write_csv(
        tmp_path / "test/colours_test.csv", ["Blood?", "red", "blue", "grey", "pink", "A"], ["Sky?", "red", "blue"]
    )
    write_csv(tmp_path / "dev/simple_sums_dev.csv", ["2 + 2 =", 1, 2, 3, 4, "D"], ["2 + 1 =", 1, 2, 3, 4, "C"])
    write_csv(tmp_path / "val/simple_sums_val.csv", ["not asked", 1, 2, 3, 4, "D"])
    task = mmlu(tmp_path)
    assert [(item.id, item.gold, item.category) for item in task.items] == [
        ("colours#0", (0,), "colours"),
        ("simple_sums#0", (1,), "simple_sums"),
        ("simple_sums#1", (0,), "simple_sums"),
    ]
    assert task.items[2].where.endswith("simple_sums_test.csv:2")
    assert [(row.where.rpartition("/")[2], row.why) for row in task.bad_rows] == [
        ("colours_test.csv:2", "3 cells where there should be 6")
    ]
    assert asked(task, 1, shots=2) == (
        "The following are multiple choice questions (with answers) about simple sums.\n\n"
        "2 + 2 =\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: D\n\n2 + 1 =\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: C\n\n"
        "1 + 1 =\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:"
    )
    assert arranged(task, "answer").items[0].choices == (" red", " blue", " grey", " pink")


def test_mmlu_as_a_hub_has_it(tmp_path: Path) -> None:
    def row(question: str, answer: int) -> dict[str, Any]:
        return {"question": question, "subject": "simple_sums", "choices": ["1", "2", "3", "4"], "answer": answer}

    write_parquet(tmp_path / "all/test-00000-of-00001.parquet", [row("1 + 1", 1), row("9 + 9", 7)])
    write_parquet(tmp_path / "all/dev-00000-of-00001.parquet", [row("2 + 1", 2)])
    task = mmlu(tmp_path)
    assert [(item.gold, item.category, len(task.examples)) for item in task.items] == [((1,), "simple_sums", 1)]
    assert [row.why for row in task.bad_rows] == ["the answer 7 is none of the 4 choices"]


def test_ceval(tmp_path: Path) -> None:
    head = ["id", "question", "A", "B", "C", "D", "answer"]
    write_csv(
        tmp_path / "val/toy_val.csv", head, [0, "一加一等于", "一", "二", "三", "四", "B"], [1, "?", 1, 2, 3, 4, ""]
    )
    write_csv(
        tmp_path / "dev/toy_dev.csv", [*head, "explanation"], [0, "二加二等于", "一", "二", "三", "四", "D", "因为"]
    )
    (tmp_path / "subject_mapping.json").write_text('{"toy": ["Toys", "玩具", "Other"]}', encoding="utf-8")
    task = ceval(tmp_path)
    assert asked(task, shots=1) == (
        "以下是中国关于玩具的单项选择题，请选出其中的正确答案。\n\n"
        "二加二等于\nA. 一\nB. 二\nC. 三\nD. 四\n答案： D\n\n一加一等于\nA. 一\nB. 二\nC. 三\nD. 四\n答案："
    )
    assert arranged(task, "answer").items[0].choices == ("一", "二", "三", "四")
    assert [row.why for row in task.bad_rows] == ["the answer '' is none of the 4 choices"]


def test_cmmlu(tmp_path: Path) -> None:
    head = ["", "Question", "A", "B", "C", "D", "Answer"]
    write_csv(tmp_path / "test/toy.csv", head, [0, "一加一等于", "一", "二", "三", "四", "B"])
    write_csv(tmp_path / "dev/toy.csv", head, [0, "二加二等于", "一", "二", "三", "四", "D"])
    task = cmmlu(tmp_path)
    assert [(item.category, item.gold) for item in task.items] == [("toy", (1,))]
    assert str(asked(task, shots=1)).startswith(
        "以下是关于toy的单项选择题，请直接给出正确答案的选项。\n\n二加二等于\nA. 一"
    )


def test_arc_in_both_layouts(tmp_path: Path) -> None:
    options = [{"text": "by day", "label": "1"}, {"text": "by night", "label": "2"}]
    old = {"id": "a", "question": {"stem": "When is it dark?", "choices": options}, "answerKey": "2"}
    write_lines(tmp_path / "ARC-Toy-Test.jsonl", [old, {**old, "id": "b", "answerKey": "E"}, "{", {**old}])
    task = arc(tmp_path)
    assert asked(task) == "Question: When is it dark?\nAnswer:"
    assert [(item.id, item.choices, item.gold) for item in task.items] == [("a", (" by day", " by night"), (1,))]
    assert [row.why.partition(" (")[0].partition(":")[0] for row in task.bad_rows] == [
        "the answer 'E' is none of the labels 1, 2",
        f"the id 'a' is that of {task.items[0].where.rpartition(':')[0]}",
        "not valid JSON",
    ]
    columns = {"text": ["by day", "by night"], "label": ["A", "B"]}
    write_parquet(
        tmp_path / "hub/test-00000-of-00001.parquet",
        [{"id": "a", "question": "When is it dark?", "choices": columns, "answerKey": "B"}],
    )
    assert arc(tmp_path / "hub").items[0].gold == (1,)
    assert arc(tmp_path / "hub").hash == arc(tmp_path / "hub/test-00000-of-00001.parquet").hash


def test_hellaswag(tmp_path: Path) -> None:
    row = {
        "ind": 4,
        "activity_label": "Baking",
        "ctx_a": "A man has flour. [header] He",
        "ctx_b": "takes [step] water  and",
        "endings": ["bakes [title] bread.", "[note]flies away."],
        "label": 0,
    }
    write_lines(
        tmp_path / "hellaswag_val.jsonl", [row, {**row, "ind": 5, "label": ""}, {**row, "ind": 6, "label": "1"}]
    )
    task = hellaswag(tmp_path)
    assert asked(task) == "Baking: A man has flour. He Takes water and"
    assert [(item.id, item.choices, item.gold) for item in task.items] == [
        ("4", (" bakes. bread.", " flies away."), (0,)),
        ("6", (" bakes. bread.", " flies away."), (1,)),
    ]
    assert "not public" in task.bad_rows[0].why


def test_gsm8k(tmp_path: Path) -> None:
    good = {"question": "Two and two?", "answer": "2 + 2 = <<2+2=4>>4\n#### 1,004"}
    write_lines(
        tmp_path / "test.jsonl", [good, {"question": "Why?", "answer": "so"}, {"question": "", "answer": "#### 1"}]
    )
    write_lines(tmp_path / "train.jsonl", [{"question": "One?", "answer": "It is.\n#### 1"}])
    task = gsm8k(tmp_path)
    assert (task.kind, task.metrics) == ("generation", ("number",))
    assert task.items[0].references == ("1004",)
    assert asked(task, shots=1) == "Question: One?\nAnswer: It is.\n#### 1\n\nQuestion: Two and two?\nAnswer:"
    assert [row.where.rpartition(":")[2] for row in task.bad_rows] == ["2", "3"]


def test_folders_without_questions_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        mmlu(tmp_path / "nowhere")
    write_csv(tmp_path / "dev/toy_dev.csv", ["2 + 2 =", 1, 2, 3, 4, "D"])
    with pytest.raises(UserError, match="no file in it is named after the split test or val"):
        mmlu(tmp_path)
    write_lines(tmp_path / "test.jsonl", ["{}"])
    with pytest.raises(UserError, match=r"nothing in it can be asked \(.*test.jsonl:1: 'question' is missing"):
        gsm8k(tmp_path)
