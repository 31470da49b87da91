"""What other programs read: JSON, and tables as CSV."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from intaglio.evaluation.load.arrivals import ClosedLoop, Constant, OpenLoop
from intaglio.evaluation.load.lengths import Lengths
from intaglio.evaluation.load.prompts import RandomPrompts
from intaglio.evaluation.load.report import FORMAT, document, write_folder
from intaglio.evaluation.load.run import Plan, compare
from intaglio.evaluation.load.slo import Targets
from intaglio.evaluation.load.target import Target
from scripted_stream import Script, ScriptedTransport
from virtual_time import run_virtual


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A report of one closed and one open loop, the last request of which failed."""
    plan = Plan(
        (ClosedLoop(2), OpenLoop(8, Constant())),
        RandomPrompts(Lengths.fixed(8), Lengths.fixed(5), shared=2),
        requests=4,
        targets=Targets(ttft=1.0),
    )
    script = Script()
    refused = iter([False] * 8 + [True])

    def answer(body: dict[str, Any]) -> Any:
        return [(0.0, {"error": {"message": "full"}})] if next(refused) else script_answer(body)

    script_answer = script.answer
    script.answer = answer  # type: ignore[method-assign]
    targets = [Target("x", fields={"ignore_eos": True}, transport=ScriptedTransport(script))]
    measured = run_virtual(compare(targets, plan))
    write_folder(tmp_path / "out", document(measured, targets, plan), measured, "<p>")
    return tmp_path / "out"


def test_the_document_has_what_a_repeat_needs(folder: Path) -> None:
    found = json.loads((folder / "load.json").read_text())
    assert found["format"] == FORMAT
    settings = found["settings"]
    assert (settings["input_tokens"], settings["output_tokens"], settings["shared_prefix"]) == ("8", "5", 2)
    assert (settings["seed"], settings["endpoint"], settings["fields"]) == (0, "chat", {"ignore_eos": True})
    assert settings["targets"] == {"ttft_s": 1.0, "attainment": 0.99}
    closed, opened = found["runs"]
    assert (closed["concurrency"], opened["rate"], opened["arrivals"]) == (2, 8, "constant")
    assert (closed["model"], closed["goodput"]["met"], opened["goodput"]["met"]) == ("scripted", 4, 3)
    assert opened["errors"] == {"an error in the stream": 1}
    assert closed["ttft_s"]["p50"] == 0.125


def test_tables_have_a_line_a_level_and_a_line_a_request(folder: Path) -> None:
    with (folder / "levels.csv").open() as lines:
        levels = list(csv.DictReader(lines))
    assert [level["concurrency"] for level in levels] == ["2", ""]
    assert levels[0]["ttft_s.p50"] == "0.125"
    assert levels[1]["errors.an error in the stream"] == "1"
    with (folder / "requests.csv").open() as lines:
        requests = list(csv.DictReader(lines))
    assert len(requests) == 8
    assert {request["ttft"] for request in requests} == {"0.125", ""}
    assert [request["lateness"] for request in requests[4:]] == ["0.0"] * 4
    assert sum(bool(request["error"]) for request in requests) == 1
    assert (folder / "load.html").read_text() == "<p>"
