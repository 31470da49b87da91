"""`intaglio demo`: every stage from the pull to the report, on a toy."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from intaglio.cli import demo
from intaglio.demo import data, training
from intaglio.demo.stage import Desk
from intaglio.errors import UserError
from intaglio.serving.beside import served
from running import Run
from toy_llms import save_parrot

HEADLINES = [
    {"text": f"{who} {what}", "label": label}
    for who in ("a man", "a cat", "the king", "a cook", "the moon", "a bank")
    for what, label in (("is here", "serious"), ("is not", "sarcastic"), ("sings", "sarcastic"), ("wins", "serious"))
]
PAIRS = [{"prompt": f"about {i}:\n", "chosen": f"number {i}", "rejected": f"what, {i}?"} for i in range(40)]
TINY = {"steps": 2, "max_length": 192, "micro_batch": 2, "validation": 0.2, "threads": 1}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A parrot in place of the model, a handful of rows in place of the data; the names that were pulled."""
    names: list[str] = []
    parrot = save_parrot(tmp_path / "parrot", context=512)
    rows = {data.HEADLINES: write(tmp_path / "headlines.jsonl", HEADLINES)}

    def pull(name: str, *, say: Callable[[str], None], progress: bool) -> Path:
        names.append(name)
        return parrot

    def smaller(make: Callable[[Desk], dict[str, Any]], changes: dict[str, Any], desk: Desk) -> dict[str, Any]:
        return make(desk) | TINY | changes

    texts = [{"text": f"def add_{i}(a, b):\n    return a + b\n" * 20} for i in range(60)]
    ends: dict[str, Any] = {"evaluate_every": 2}
    nothing: dict[str, Any] = {
        "data": str(write(tmp_path / "texts.jsonl", texts)), "split_by": "content", "tokenizer": {"vocab_size": 300},
        "sample_every": 2, "sample_tokens": 4,
    }  # fmt: skip
    pairs = {"data": str(write(tmp_path / "pairs.jsonl", PAIRS))}
    changes: dict[str, dict[str, Any]] = {"pretrain": ends | nothing, "tune": ends, "prefer": pairs}
    for stage, change in changes.items():
        make = getattr(training, f"{stage}_recipe")
        monkeypatch.setattr(training, f"{stage}_recipe", partial(smaller, make, change))
    monkeypatch.setattr("intaglio.checkpoints.pull.pull", pull)
    monkeypatch.setattr(data, "data_rows", lambda name, say: rows[name])
    monkeypatch.setenv("INTAGLIO_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(Desk, "sized", lambda desk, whole, quick: min(quick, 4))
    return names


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """One server, of the first model, answers for all that are asked for; which those were."""
    models, addresses = list[str](), list[str]()
    with ExitStack() as stack:

        @contextmanager
        def once(model: str, *options: str) -> Iterator[str]:
            models.append(model)
            if not addresses:
                addresses.append(stack.enter_context(served(model, *options)))
            yield addresses[0]

        monkeypatch.setattr("intaglio.demo.serving.served", once)
        yield models


def test_it_lives_through_every_stage(run: Run, toy: list[str], asked_for: list[str], tmp_path: Path) -> None:
    ran = run("demo", "--quick", "--out", tmp_path / "life", "--json", "--threads", 1)
    assert ran.status == 0, ran.err
    told = json.loads(ran.out)
    assert toy == ["smollm2-135m-instruct"]
    stages = told["stages"]
    assert [row["name"] for row in told["table"]] == [*stages]
    assert stages["before"]["rows"] == stages["after"]["rows"] == 4
    gain = stages["after"]["score"]["mean"] - stages["before"]["score"]["mean"]
    assert stages["after"]["gain"]["difference"] == pytest.approx(gain)
    assert stages["merge"]["same_choice"] > 0.9
    assert len(stages["serve"]["turns"]) == 2
    assert asked_for == [stages["pull"]["path"], stages["merge"]["path"]]
    assert stages["load"]["failed"] == 0
    assert stages["load"]["requests"] > 0
    assert stages["plan"]["verdict"] == "fits"
    (line,) = Path(told["leaderboard"]).read_text().splitlines()
    assert json.loads(line)["scores"] == {row["name"]: row["value"] for row in told["table"]}
    page = Path(told["report"]).read_text()
    assert all(row["what"] in page for row in told["table"])


def test_what_is_missing_is_said_first(run: Run, monkeypatch: pytest.MonkeyPatch, toy: list[str]) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == "openai" else object())
    assert "it needs openai; pip install 'intaglio[demo]'" in run("demo").refusal.replace(": ", "; ")
    assert not toy


def test_a_folder_with_something_else_is_left_alone(run: Run, toy: list[str], tmp_path: Path) -> None:
    (tmp_path / "life").mkdir()
    (tmp_path / "life" / "thesis.tex").write_text("years of work")
    assert "holds something else" in run("demo", "--out", tmp_path / "life").refusal


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the server did not start: .*no-such-model"), served("no-such-model"):
        pytest.fail("it stands")
