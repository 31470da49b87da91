"""`intaglio demo`: everything from the pull to the conversation, on a toy."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from intaglio.cli import demo
from intaglio.cli.served import served
from intaglio.errors import UserError
from running import Run
from toy_llms import ANSWER, save_parrot


@pytest.fixture(scope="module")
def patient_parrot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parrot whose context holds the demo's conversation."""
    return save_parrot(tmp_path_factory.mktemp("models") / "parrot", context=512)


@pytest.fixture(autouse=True)
def pulled(patient_parrot: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pulls nothing; the names that were asked for."""
    names: list[str] = []

    def pull(name: str, *, say: Callable[[str], None], progress: bool) -> Path:
        names.append(name)
        say("licence: none")
        return patient_parrot

    monkeypatch.setattr("intaglio.checkpoints.pull.pull", pull)
    return names


def test_it_pulls_shows_answers_and_talks(run: Run, pulled: list[str]) -> None:
    ran = run("demo", "--no-pretrain", "--no-serve")
    assert ran.status == 0
    assert pulled == ["smollm2-135m-instruct"]
    assert "licence: none" in ran.err
    assert "1 layers of 320 features" in ran.err
    assert ran.err.count(ANSWER) == 4
    assert "> Name the capital of France." in ran.err
    assert ran.err.index("a conversation of two turns") < ran.err.index("> Tell me the name")
    first, second, third = ran.out.strip().splitlines()
    assert first.startswith("56 tokens in 4 answers at ")
    assert "tokens/s" in first
    assert second.endswith("intaglio chat smollm2-135m-instruct")
    assert third.endswith("intaglio serve smollm2-135m-instruct, then http://127.0.0.1:8000/")


def test_json_has_every_turn(run: Run) -> None:
    ran = run("demo", "--no-pretrain", "--json")
    report = json.loads(ran.out)
    assert "asked by openai-python" in ran.err
    assert [turn["answer"] for turn in report["served"]] == [ANSWER] * 2
    assert [turn["answer"] for turn in report["turns"]] == [ANSWER] * 4
    assert report["turns"][0]["question"] == "Name the capital of France."
    *_, third, fourth = (turn["prompt_tokens"] for turn in report["turns"])
    assert fourth > third + 14  # the second turn remembers the first
    assert report["tokens_per_second"] > 0
    assert report["peak_memory_bytes"] > 0


def test_answers_are_as_long_as_asked(run: Run) -> None:
    report = json.loads(run("demo", "--no-pretrain", "--no-serve", "--json", "--max-tokens", 3).out)
    assert [turn["new_tokens"] for turn in report["turns"]] == [3] * 4
    assert "'--max-tokens'" in run("demo", "--max-tokens", 0).refusal


def test_it_trains_a_model_from_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pulled: list[str]
) -> None:
    rows = [{"text": f"def add_{i}(a, b):\n    return a + b\n" * 20} for i in range(60)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = demo._recipe(1)
    small = whole.updated(
        data=str(tmp_path / "rows.jsonl"), tokenizer={"vocab_size": 300}, steps=2, evaluate_every=2, sample_every=2,
        max_length=64, sample_tokens=4, validation=0.2, split_by="content",
    )  # fmt: skip
    monkeypatch.setattr(demo, "_recipe", lambda threads: small)
    report = json.loads(run("demo", "--no-serve", "--json").out)["pretraining"]
    assert report["steps"] == 2
    assert report["bits_per_byte"] > 0
    assert [sample.split("(")[0].split(":")[0] for sample in report["samples"]] == ["def read_lines", "class Item"]


def test_what_is_missing_is_said_first(run: Run, monkeypatch: pytest.MonkeyPatch, pulled: list[str]) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert "pip install 'intaglio[demo]', or say --no-serve" in run("demo").refusal
    assert not pulled


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the server did not start: .*no-such-model"), served("no-such-model"):
        pytest.fail("it stands")
