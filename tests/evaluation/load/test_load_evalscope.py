"""The same load by EvalScope: what it is told, what is read of its files, and that both tell the same."""

import json
import sys
from pathlib import Path

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.bridges.outside import find_program
from intaglio.evaluation.load.arrivals import ClosedLoop, Constant, Level, OpenLoop
from intaglio.evaluation.load.conversations import Turn
from intaglio.evaluation.load.evalscope import drive
from intaglio.evaluation.load.lengths import Lengths, parse_lengths
from intaglio.evaluation.load.prompts import FilePrompts, RandomPrompts
from intaglio.evaluation.load.run import Plan, Search, measure
from intaglio.evaluation.load.slo import Targets
from intaglio.evaluation.load.target import Target
from scripted_stream import Script, scripted_socket

WORDS = RandomPrompts(Lengths.fixed(8), Lengths.fixed(5))
TURNS = RandomPrompts(Lengths.fixed(8), Lengths.fixed(5), turns=Lengths.fixed(2))
STAND_IN = """#!/bin/sh
exec {python} {script} "$@"
"""
WRITES = '''"""Writes what EvalScope would: two requests that went well, and one that did not."""
import json, pathlib, sqlite3, sys
options = dict(zip(sys.argv, sys.argv[1:]))
folder = pathlib.Path(options["--outputs-dir"], options["--name"], "parallel_2_number_3")
folder.mkdir(parents=True)
(folder / "asked.json").write_text(json.dumps(sys.argv[1:]))
if "broken" in options["--model"]:
    sys.exit("no luck today")
for part in ("summary", "percentile"):
    (folder / f"benchmark_{part}.json").write_text(json.dumps({"Avg TTFT (ms)": 250.0}))
data = sqlite3.connect(folder / "benchmark_data.db")
data.execute("CREATE TABLE result (request, start_time, inter_token_latencies, success, response_messages, "
             "completed_time, latency, first_chunk_latency, prompt_tokens, completion_tokens)")
answer = json.dumps([{"role": "user"}, {"role": "assistant"}, {"role": "user"}])
body = '{"max_tokens": 5, "messages": ' + answer + "}"
rows = [(body, 1.0, "[0.5, 0.5]", 1, "cpickle", 2.25, 1.25, 0.25, 8, 3), (body, 2.0, "[]", 1, "", 3.0, 1.0, 0.0, 8, 1),
        (body, 3.0, "[]", 0, "", 3.5, None, None, None, None)]
data.executemany("INSERT INTO result VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
data.commit()
'''


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python beside which stands a command that writes EvalScope's files."""
    script = tmp_path / "writes.py"
    script.write_text(WRITES)
    command = tmp_path / "evalscope"
    command.write_text(STAND_IN.format(python=sys.executable, script=script))
    command.chmod(0o755)
    return tmp_path / "python"


def driven(python: Path, folder: Path, plan: Plan, model: str = "m", **more: object) -> dict[str, object]:
    with scripted_socket(Script()) as url:
        (one,) = drive(Target(url, model, fields={"ignore_eos": True}, **more), plan, folder, python)  # type: ignore[arg-type]
    assert one.name.endswith("(evalscope)")
    return one.summary


def test_its_files_are_read_into_our_summary(python: Path, tmp_path: Path) -> None:
    found = driven(python, tmp_path / "out", Plan((ClosedLoop(2),), TURNS, requests=3, warmup=1))
    assert found["requests"] == 3
    assert found["errors"] == {"failed": 1}
    assert (found["output_tokens"], found["wanted_output_tokens"]) == (4, 10)
    first, tpot, gaps, whole = (found[name] for name in ("ttft_s", "tpot_s", "itl_s", "latency_s"))
    assert (first["count"], first["mean"]) == (1, 0.25)  # type: ignore[index]  # its 0 of an answer without content is none: case 41
    assert (tpot["count"], tpot["mean"]) == (1, 0.5)  # type: ignore[index]  # case 42
    assert (gaps["count"], gaps["mean"], whole["mean"]) == (2, 0.5, 1.125)  # type: ignore[index]
    assert found["duration_s"] == 2.5
    assert found["later_turn_ttft_s"]["count"] == 1  # type: ignore[index]
    assert found["evalscope"]["summary"] == {"Avg TTFT (ms)": 250.0}  # type: ignore[index]


def test_it_is_told_the_same_workload(python: Path, tmp_path: Path) -> None:
    driven(python, tmp_path, Plan((ClosedLoop(2),), WORDS, requests=3, warmup=1), api_key="k")
    place = tmp_path / "concurrency-2"
    asked = json.loads(next(place.glob("run/*/asked.json")).read_text())
    for pair in (["--parallel", "2"], ["--number", "3"], ["--warmup-num", "1"], ["--dataset", "line_by_line"]):
        assert pair == asked[asked.index(pair[0]) : asked.index(pair[0]) + 2]
    assert asked[asked.index("--url") + 1].endswith("/v1/chat/completions")
    bodies = [json.loads(line) for line in (place / "prompts.jsonl").read_text().splitlines()]
    assert len(bodies) == 4
    for body in bodies:  # case 45
        assert (body["ignore_eos"], body["max_tokens"], body["stream"]) == (True, 5, True)
        assert len(body["messages"][0]["content"].split()) == 8
    driven(python, tmp_path, Plan((OpenLoop(4),), WORDS, requests=3), endpoint="completions")
    asked = json.loads(next((tmp_path / "rate-4").glob("run/*/asked.json")).read_text())
    assert {"--open-loop", "--no-apply-chat-template"} <= set(asked)
    body = json.loads((tmp_path / "rate-4" / "prompts.jsonl").read_text().splitlines()[0])
    assert len(body["prompt"]) == 8


def test_conversations_are_told_with_room_for_the_models_answers(python: Path, tmp_path: Path) -> None:
    driven(python, tmp_path, Plan((ClosedLoop(2),), TURNS, requests=3, warmup=0))
    lines = (tmp_path / "concurrency-2" / "prompts.jsonl").read_text().splitlines()
    assert [[message["role"] for message in json.loads(line)] for line in lines] == [["user", "assistant", "user"]] * 3


def test_what_it_cannot_do_is_refused(python: Path, tmp_path: Path) -> None:
    plans: dict[str, tuple[tuple[Level, ...], object, dict[str, object]]] = {
        "does not know constant": ((OpenLoop(1, Constant()),), WORDS, {}),
        "no open loop of several turns": ((OpenLoop(1),), TURNS, {}),
        "wants a number as well": ((ClosedLoop(1),), WORDS, {"duration": 5.0}),
        "have one length": ((ClosedLoop(1),), FilePrompts(((Turn("a", 3), Turn("b", 3)),)), {}),
        "a search is ours": ((), WORDS, {"search": Search("rate"), "targets": Targets()}),
    }
    for words, (levels, prompts, more) in plans.items():
        with pytest.raises(UserError, match=words):
            driven(python, tmp_path, Plan(levels, prompts, **more))  # type: ignore[arg-type]
    drawn = RandomPrompts(Lengths.fixed(8), parse_lengths("2-4"), turns=Lengths.fixed(2))
    with pytest.raises(UserError, match="have one length"):
        driven(python, tmp_path, Plan((ClosedLoop(1),), drawn))


def test_its_failure_is_quoted(python: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no luck today"):
        driven(python, tmp_path, Plan((ClosedLoop(2),), WORDS, requests=3), "broken")


def evalscope_is_here() -> bool:
    try:
        return bool(find_program("evalscope"))
    except UserError:
        return False


@pytest.mark.prove
@pytest.mark.skipif(not evalscope_is_here(), reason="no EvalScope here: `make eval-env` installs it")
def test_both_tell_the_same_of_a_server_of_fixed_delays(tmp_path: Path) -> None:
    """Within 5 %, its summary against ours; a machine that is busy with something else has three tries."""
    plan = Plan((ClosedLoop(2),), WORDS, requests=6, warmup=2)
    for attempt in range(3):
        with scripted_socket(Script(first=0.6, gap=0.15)) as url:
            (ours,) = measure(Target(url), plan)
            (theirs,) = drive(Target(url), plan, tmp_path / str(attempt))
        told = theirs.summary["evalscope"]["summary"]
        assert (told["Success Requests"], told["Avg Output Tokens"], told["Avg Input Tokens"]) == (6, 5, 8)
        names = {
            "ttft_s": "Avg TTFT (ms)",
            "tpot_s": "Avg TPOT (ms)",
            "itl_s": "Avg ITL (ms)",
            "latency_s": "Avg Latency (s)",
        }
        found = {name: (ours.summary[name]["mean"], told[other]) for name, other in names.items()}
        found = {name: (a, b if name == "latency_s" else b / 1000) for name, (a, b) in found.items()}
        for name, (_, value) in found.items():  # its own means are those of its requests, rounded
            assert theirs.summary[name]["mean"] == pytest.approx(value, abs=1e-4)
        if all(value == pytest.approx(other, rel=0.05) for value, other in found.values()):
            return
    raise AssertionError(found)
