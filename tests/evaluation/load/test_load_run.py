"""Whole load tests against a server of fixed delays: exact in virtual time, and near enough over a socket."""

from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from intaglio.errors import UserError
from intaglio.evaluation.load.arrivals import ClosedLoop, Constant, OpenLoop
from intaglio.evaluation.load.conversations import Turn
from intaglio.evaluation.load.latency import Sample
from intaglio.evaluation.load.lengths import Lengths
from intaglio.evaluation.load.prompts import FilePrompts, RandomPrompts
from intaglio.evaluation.load.run import Measured, Observer, Plan, Search, compare, measure
from intaglio.evaluation.load.slo import Targets
from intaglio.evaluation.load.target import Target
from scripted_stream import Script, ScriptedTransport, chunk, scripted_socket, usage
from virtual_time import run_virtual

WORDS = RandomPrompts(Lengths.fixed(8), Lengths.fixed(5))
NAMES = ("mean", "min", "p1", "p50", "p99", "max")


def exact(script: Script, plan: Plan, observer: Observer | None = None, **more: Any) -> list[Measured]:
    """In virtual time."""

    async def test() -> list[Measured]:
        target = Target("x", transport=ScriptedTransport(script), **more)
        return await compare([target], plan, observer)

    return run_virtual(test())


def test_a_closed_loop_has_exactly_the_scripts_figures() -> None:
    """A first token after 1/8 s, then four more 1/32 s apart: an answer takes 1/4 s."""
    (one,) = exact(Script(), Plan((ClosedLoop(2),), WORDS, requests=8))
    found = one.summary
    expected = {"ttft_s": (8, 0.125), "tpot_s": (8, 0.03125), "itl_s": (32, 0.03125), "latency_s": (8, 0.25)}
    for name, (count, value) in expected.items():
        assert found[name]["count"] == count
        assert {found[name][which] for which in NAMES} == {value}, name
    assert (found["duration_s"], found["mean_concurrency"]) == (1.0, 2.0)
    assert (found["requests_per_second"], found["output_tokens_per_second"]) == (8.0, 40.0)
    assert found["total_tokens_per_second"] == 104.0
    assert (found["input_tokens"], found["output_tokens"], found["wanted_output_tokens"]) == (64, 40, 40)
    assert found["generator"]["loop_lag_p99_s"] == 0.0
    assert found["queue_s"]["mean"] is None
    assert found["lateness_s"]["count"] == 0
    assert found["warnings"] == ["the percentiles are of 8: a p99 wants 100 answers or more"]
    assert (one.model, one.name, one.level) == ("scripted", "x", ClosedLoop(2))


def test_a_hundred_answers_are_enough() -> None:
    (one,) = exact(Script(), Plan((ClosedLoop(10),), WORDS, requests=100))
    assert one.summary["warnings"] == []


def test_an_open_loop_counts_the_queue_that_it_makes() -> None:
    """One slot of 1/4 s an answer, a request each 1/8 s: the k-th waits k/8 s."""
    (one,) = exact(Script(slots=1), Plan((OpenLoop(8, Constant()),), WORDS, requests=5))
    assert [sample.ttft for sample in one.samples] == [0.125 + k / 8 for k in range(5)]
    assert one.summary["duration_s"] == 1.25
    assert one.summary["lateness_s"]["max"] == 0.0
    assert one.summary["tpot_s"]["max"] == 0.03125


def test_a_level_ends_with_its_time() -> None:
    (one,) = exact(Script(), Plan((ClosedLoop(2),), WORDS, duration=1.125))
    assert (one.summary["requests"], one.summary["duration_s"]) == (10, 1.25)
    (one,) = exact(Script(), Plan((ClosedLoop(2),), WORDS, duration=1.125, requests=3))
    assert one.summary["requests"] == 3


def test_levels_have_prompts_of_their_own_and_warm_up_first() -> None:
    script = Script()
    exact(script, Plan((ClosedLoop(1), ClosedLoop(2), ClosedLoop(1)), WORDS, requests=4, warmup=2))
    prompts = [body["messages"][0]["content"] for body in script.asked]
    assert len(prompts) == len(set(prompts)) == 2 + 3 * 4


def test_conversations_are_held_turn_by_turn() -> None:
    script = Script()
    plan = Plan((ClosedLoop(2),), RandomPrompts(Lengths.fixed(8), Lengths.fixed(5), turns=Lengths.fixed(3)), requests=2)
    (one,) = exact(script, plan)
    assert one.summary["requests"] == 6
    assert one.summary["later_turn_ttft_s"]["count"] == 4
    longest = max((body["messages"] for body in script.asked), key=len)
    assert [message["role"] for message in longest] == ["user", "assistant"] * 2 + ["user"]
    assert longest[1]["content"] == "t0 t1 t2 t3 t4 "
    assert one.summary["duration_s"] == 0.75


def test_the_most_concurrency_that_keeps_the_targets_is_found() -> None:
    """Six slots: with up to six at once nobody waits; a seventh waits a whole answer."""
    plan = Plan((), WORDS, requests=24, targets=Targets(ttft=0.2), search=Search("concurrency", 1, 64))
    found = exact(Script(slots=6), plan)
    assert [one.level.load for one in found if one.summary["highest"]] == [6]
    assert {one.level.load: one.kept for one in found} == {1: True, 2: True, 4: True, 8: False, 6: True, 7: False}
    kept = next(one for one in found if one.summary["highest"]).summary["goodput"]
    assert (kept["attainment"], kept["requests_per_second"]) == (1.0, 24.0)


def test_the_highest_rate_is_found() -> None:
    """One slot of 1/4 s: four a second."""
    search = Search("rate", 2.0, 16.0, Constant())
    plan = Plan((), WORDS, requests=24, targets=Targets(ttft=0.2), search=search)
    (best,) = (one.level.load for one in exact(Script(slots=1), plan) if one.summary["highest"])
    assert 3.8 <= best <= 4.2


def test_servers_take_turns_and_are_asked_the_same() -> None:
    fast, slow = Script(), Script(first=0.25, gap=0.0625)

    async def test() -> list[Measured]:
        targets = [Target(name, transport=ScriptedTransport(script)) for name, script in (("a", fast), ("b", slow))]
        return await compare(targets, Plan((ClosedLoop(1), ClosedLoop(2)), WORDS, requests=2))

    found = run_virtual(test())
    assert [(one.name, one.level.load) for one in found] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert [one.summary["latency_s"]["mean"] for one in found] == [0.25, 0.5] * 2
    assert fast.asked == slow.asked


def test_what_the_server_says_of_its_queue_is_told() -> None:
    looks = iter([(1.0, 2), (5.0, 6)])

    def metrics() -> str:
        total, count = next(looks)
        return f"vllm:request_queue_time_seconds_sum {total}\nvllm:request_queue_time_seconds_count {count}\n"

    (one,) = exact(Script(metrics=metrics), Plan((ClosedLoop(1),), WORDS, requests=4))
    assert (one.summary["queue_s"]["count"], one.summary["queue_s"]["mean"]) == (4, 1.0)


def short_answers(body: dict[str, Any]) -> list[tuple[float, Any]]:
    details = {"prompt_tokens_details": {"cached_tokens": 8}}
    return [(0.125, chunk("stop", content="a")), (0.0, usage(8, 1, **details)), (0.0, "[DONE]")]


def uncounted(body: dict[str, Any]) -> list[tuple[float, Any]]:
    return [(0.125, chunk(content="a")), (0.125, chunk("stop", content="b")), (0.0, "[DONE]")]


@pytest.mark.parametrize(
    ("answers", "said"),
    [(short_answers, ["4 tokens where 20", "32 tokens of prompts came"]), (uncounted, ["8 tokens where", "no usage"])],
)
def test_what_the_figures_do_not_say_is_said(answers: Callable[[Any], Any], said: list[str]) -> None:  # case 45
    (one,) = exact(Script(events=answers), Plan((ClosedLoop(1),), WORDS, requests=4))
    for part in said:
        assert any(part in text for text in one.summary["warnings"]), one.summary["warnings"]


def test_a_server_that_does_not_tokenise_is_told_of() -> None:
    class Listening(Observer):
        def __init__(self) -> None:
            self.said: list[str] = []
            self.seen: list[Sample] = []

        def says(self, line: str) -> None:
            self.said.append(line)

        def sees(self, sample: Sample) -> None:
            self.seen.append(sample)

    observer = Listening()
    (one,) = exact(Script(tokenize=None), Plan((ClosedLoop(1),), WORDS, requests=3), observer)
    assert "does not tokenise" in observer.said[0]
    assert one.summary["input_tokens_each"]["mean"] == 8
    assert len(observer.seen) == 3  # the warm-up is not seen


def test_what_does_not_fit_together_is_refused() -> None:
    several = FilePrompts(((Turn("a", 1), Turn("b", 1)),))
    with pytest.raises(UserError, match="are chats"):
        exact(Script(), Plan(prompts=several), endpoint="completions")
    with pytest.raises(UserError, match="a search needs targets"):
        exact(Script(), Plan((), search=Search("rate")))


def near(value: float, truth: float) -> bool:
    return abs(value - truth) <= max(0.05 * truth, 0.002)


def test_over_a_socket_the_figures_are_the_servers() -> None:
    """Within 5 % or 2 ms of what the server did; a machine that is busy with something else has three tries."""
    for _ in range(3):
        script = Script(first=0.4, gap=0.1)
        with scripted_socket(script) as url:
            (one,) = measure(Target(url), Plan((ClosedLoop(4),), WORDS, requests=4, warmup=0))
        first, whole = (median(times) for times in zip(*script.spans, strict=True))
        assert first >= 0.4
        assert whole >= 0.4 + 4 * 0.1
        told = [one.summary[name]["p50"] for name in ("ttft_s", "latency_s", "tpot_s")]
        if all(near(value, truth) for value, truth in zip(told, (first, whole, (whole - first) / 4), strict=True)):
            return
    raise AssertionError((told, first, whole))
