"""Our load test and EvalScope's on SmolLM2, three times in turn: both tell what the server tells.

- Latency: EvalScope's goes to the message with the usage, ours to the last piece of the answer. Our server sends both
  at once, so this is less than a millisecond.
- TTFT: a client's is a few milliseconds later than the server's own; EvalScope's takes some more from the sending to
  the socket. (Once it was 40 ms on both sides: the server's sockets held the first piece back. See `server.listen`.)
- Percentiles: EvalScope takes the nearest rank, we interpolate; so means are compared, of the same formulas for both.
- One side's times hang on what else the machine does just then, twice as long or half: so each is held against what the
  server says that the very same requests took (its histograms under `/metrics`).
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import httpx2
import pytest

from intaglio.evaluation.load.arrivals import ClosedLoop, OpenLoop
from intaglio.evaluation.load.evalscope import drive
from intaglio.evaluation.load.lengths import Lengths
from intaglio.evaluation.load.prompts import RandomPrompts
from intaglio.evaluation.load.run import Plan, measure
from intaglio.evaluation.load.target import Target
from served_model import served_model

pytestmark = [pytest.mark.real, pytest.mark.prove]

SERVER = {"ttft_s": "time_to_first_token_seconds", "latency_s": "e2e_request_latency_seconds"}
REQUESTS, ROUNDS = 8, 3  # for each side
WORDS = RandomPrompts(Lengths.fixed(48), Lengths.fixed(16))


@pytest.fixture(scope="module")
def url(smollm2_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_model(smollm2_dir, log=tmp_path_factory.mktemp("log") / "serve.log") as server:
        yield server.url


def with_seed(plan: Plan, seed: int) -> Plan:
    """The same with other words, which the prefix cache does not know."""
    assert isinstance(plan.prompts, RandomPrompts)
    return replace(plan, prompts=replace(plan.prompts, seed=seed))


def in_turn(url: str, level: ClosedLoop, folder: Path, number: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Both sides right after each other, who is first in turn: the mean of a figure, and what the server says of it."""
    target = Target(url, fields={"ignore_eos": True})
    plan = Plan((level,), WORDS, requests=REQUESTS, warmup=0)
    found = {}
    for side in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
        theirs, before = side == "theirs", server_says(url)
        plan = with_seed(plan, 2 * number + theirs)
        (one,) = drive(target, plan, folder / str(number)) if theirs else measure(target, plan)
        assert one.summary["failed"] == 0
        assert one.summary["output_tokens"] == one.summary["wanted_output_tokens"] == REQUESTS * 16
        assert one.summary["input_tokens"] > REQUESTS * 48  # the template's own come on top
        after = server_says(url)
        deltas = {name: [b - a for a, b in zip(before[name], after[name], strict=True)] for name in SERVER}
        assert deltas["ttft_s"][1] == REQUESTS
        found[side] = {name: (one.summary[name]["mean"], total / count) for name, (total, count) in deltas.items()}
    return found


def server_says(url: str) -> dict[str, tuple[float, float]]:
    """The sum and the count of its histograms so far."""
    found: dict[str, tuple[float, float]] = {}
    text = httpx2.get(f"{url}/metrics").text
    for name, metric in SERVER.items():
        total, count = (re.search(rf"{metric}_{part}\S* (\S+)", text) for part in ("sum", "count"))
        found[name] = (float(total[1]), float(count[1])) if total and count else (0.0, 0.0)
    return found


@pytest.mark.parametrize("level", [ClosedLoop(1), ClosedLoop(4)])
def test_both_tell_what_the_server_tells(url: str, tmp_path: Path, level: ClosedLoop) -> None:
    """Against the server's own clock, so that a machine that gets slower between two runs is no finding."""
    measure(Target(url), Plan((level,), with_seed(Plan(prompts=WORDS), 99).prompts, requests=4))  # it is warm
    rounds = [in_turn(url, level, tmp_path, number) for number in range(ROUNDS)]
    shares = {}
    for name in SERVER:
        for side in ("ours", "theirs"):
            values = [one[side][name] for one in rounds]
            shares[name, side] = median(client / server for client, server in values)
            said = " ".join(f"{1000 * client:.0f}/{1000 * server:.0f}" for client, server in values)
            print(f"{level.load:g} at once, {name}, {side}/the server's: {said} ms, {shares[name, side]:.3f}")
    assert all(0.97 < shares["latency_s", side] < 1.05 for side in ("ours", "theirs")), shares
    assert all(0.97 < shares["ttft_s", side] < 1.25 for side in ("ours", "theirs")), shares


def test_conversations_and_open_loops_agree_in_what_is_sent(url: str, tmp_path: Path) -> None:
    """Turns of words, then completions of ids at a rate; times are those of one short run and not compared."""
    turns = replace(WORDS, turns=Lengths.fixed(2), input_tokens=Lengths.fixed(24), output_tokens=Lengths.fixed(8))
    target = Target(url, fields={"ignore_eos": True})
    plan = Plan((ClosedLoop(2),), turns, requests=4)
    (ours,), (theirs,) = measure(target, plan), drive(target, with_seed(plan, 1), tmp_path / "turns")
    for side in (ours.summary, theirs.summary):
        assert (side["requests"], side["failed"], side["output_tokens"]) == (8, 0, 64)
        assert side["later_turn_ttft_s"]["count"] == 4
    assert theirs.summary["input_tokens"] == pytest.approx(ours.summary["input_tokens"], rel=0.1)

    target = Target(url, endpoint="completions", fields={"ignore_eos": True})
    plan = Plan((OpenLoop(1.5),), replace(WORDS, output_tokens=Lengths.fixed(8)), requests=8)
    (ours,), (theirs,) = measure(target, plan), drive(target, with_seed(plan, 1), tmp_path / "rate")
    for side in (ours.summary, theirs.summary):
        assert (side["requests"], side["failed"], side["input_tokens"], side["output_tokens"]) == (8, 0, 8 * 48, 64)
