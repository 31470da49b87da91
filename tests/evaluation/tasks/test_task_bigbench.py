"""BIG-bench's JSON tasks, and how tasks are called."""

from pathlib import Path
from typing import Any

import pytest

from intaglio.data.datasets import original_files, pull_data
from intaglio.data.datasets import pull as pulling
from intaglio.errors import UserError
from intaglio.evaluation.framing import framed
from intaglio.evaluation.tasks.bigbench import bigbench_task
from intaglio.evaluation.tasks.read import read_task, read_tasks
from intaglio.files import write_json
from toy_archives import write_archive

CHOICES = {"examples": [{"input": "Red?", "target_scores": {"yes": 1, "no": 0}}, {"input": "Hot?"}], "canary": "GUID 1"}
FREE = {
    "task_prefix": "Add.\n",
    "example_input_prefix": "\nSum: ",
    "example_output_prefix": "\nIs: ",
    "metrics": ["exact_str_match", "bleu", "log_likelihood"],
    "examples": [
        {"input": "1 + 1", "target": ["2", "two"]},
        {"input": "1 + 2", "target": 3},
        {"input": "x", "target": []},
    ],
}


def written(folder: Path, **tasks: dict[str, Any]) -> list[Path]:
    """These tasks as the package has them; `__` in a name stands for a subtask."""
    files = [folder / f"bigbench/benchmark_tasks/{name.replace('__', '/')}/task.json" for name in tasks]
    for file, task in zip(files, tasks.values(), strict=True):
        write_json(file, task)
    return files


def test_choices_are_laid_out_as_published(tmp_path: Path) -> None:
    task = bigbench_task("toy", written(tmp_path, toy=CHOICES))
    (item,) = task.items
    assert framed(task, item, [], chat=False) == "\nQ: Red?\nA: "
    assert (item.choices, item.gold, item.stem, task.scoring) == (("yes", "no"), (0,), "Red?", "answer")
    assert framed(task, item, [item], chat=False) == "\nQ: Red?\nA: yes\n\nQ: Red?\nA: "
    assert [row.why for row in task.bad_rows] == ["'target_scores' is not a list of texts"]
    assert task.bad_rows[0].where.endswith("toy/task.json#1")


def test_choices_can_be_listed_in_a_drawn_order(tmp_path: Path) -> None:
    example = {"target_scores": {"yes": 1, "no": 0}}
    examples = {"examples": [{"input": str(number), **example} for number in range(20)], "choice_prefix": "\n- "}
    task = bigbench_task("toy", written(tmp_path, toy=examples), listed=True)
    orders = {item.question.removeprefix(f"\nQ: {item.stem}") for item in task.items}
    assert orders == {"\n- yes\n- no\nA: ", "\n- no\n- yes\nA: "}


def test_the_highest_scores_are_right(tmp_path: Path) -> None:
    scores = [{"a": 0.5, "b": 0.5, "c": 0}, {"a": 0, "b": 0}, {"a": "x", "b": 1}]
    examples = [{"input": "?", "target_scores": one} for one in scores]
    task = bigbench_task("toy", written(tmp_path, toy={"examples": examples}))
    assert [item.gold for item in task.items] == [(0, 1)]
    assert [row.why for row in task.bad_rows] == ["none of the choices is right", "'target_scores' are not numbers"]


def test_free_answers(tmp_path: Path) -> None:
    task = bigbench_task("toy", written(tmp_path, toy=FREE))
    assert (task.kind, task.metrics) == ("generation", ("exact_match", "bleu"))
    assert [item.references for item in task.items] == [("2", "two"), ("3",)]
    assert framed(task, task.items[1], [task.items[0]], chat=False) == "Add.\n\nSum: 1 + 1\nIs: 2\n\nSum: 1 + 2\nIs:"
    assert task.items[0].stem == "Sum: 1 + 1"
    assert [row.why for row in task.bad_rows] == ["'target' is missing"]


def test_subtasks_are_categories(tmp_path: Path) -> None:
    task = bigbench_task("toys", written(tmp_path, toys={"name": "toys"}, toys__red=CHOICES, toys__blue=CHOICES))
    assert [(item.id, item.category) for item in task.items] == [("toys/red#0", "red"), ("toys/blue#0", "blue")]


def test_nothing_to_ask_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing in it can be asked"):
        bigbench_task("toy", written(tmp_path, toy={"name": "toy"}))


def test_pulling_keeps_the_file_canary_and_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTAGLIO_HOME", str(tmp_path))

    def download(requirement: str, sha256: str, into: Path, progress: object) -> Path:
        into.mkdir(parents=True, exist_ok=True)
        good = {**CHOICES, "examples": CHOICES["examples"][:1]}
        members = {f"bigbench/benchmark_tasks/{name}/task.json": good for name in ("toys", "toys/red", "other")}
        return write_archive(into / "a.tgz", members)

    monkeypatch.setattr(pulling, "DOWNLOAD", dict.fromkeys(("wheel", "sdist", "npm"), download))
    task = read_task("bigbench:toys/red")
    assert (task.name, len(task.items), task.items[0].category) == ("bigbench:toys/red", 1, "")
    (file,) = original_files("bigbench:toys/red")
    assert "GUID 1" in file.read_text()
    assert len(read_task("bigbench:toys").items) == 2
    assert (pull_data("bigbench:toys") / "rows.jsonl").exists()
    assert len(read_task("bigbench:other", listed=True).items[0].question) > len("\nQ: Red?\nA: ")
    (tmp_path / "data/bigbench--other/original").rename(tmp_path / "gone")
    with pytest.raises(UserError, match=r"what it was read from is not there; remove .* and pull it again"):
        read_task("bigbench:other")


def test_tasks_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"question": "1 + 1?", "answer": "2"}\n')
    lines = '{"question": "1 + 1?", "answer": "#### 2"}\n'
    (tmp_path / "test.jsonl").write_text(lines)
    tasks = read_tasks(f"{file}, gsm8k:{tmp_path / 'test.jsonl'}")
    assert [(task.name, task.kind) for task in tasks] == [
        ("mine", "generation"),
        (f"gsm8k:{tmp_path / 'test.jsonl'}", "generation"),
    ]
    for names, why in {
        "": "no task is named",
        f"{file},{file}": "is named twice",
        "mmul:x": "there is no task 'mmul:x'; did you mean mmlu",
        "nowhere.jsonl": "no such file",
        "bigbench": "there is no task",
    }.items():
        with pytest.raises(UserError, match=why):
            read_tasks(names)
    with pytest.raises(UserError, match="only BIG-bench tasks can list their choices"):
        read_tasks(str(file), listed=True)


def test_without_a_network_a_set_of_the_hub_asks_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTAGLIO_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"gsm8k \(or give your files: gsm8k:PATH\)"):
        read_task("gsm8k")
    assert not list(tmp_path.glob("data/*"))
