"""The figures of a load test: each against its definition, on answers whose times are known."""

import pytest

from intaglio.evaluation.latency import Sample, summary


def answer(start: float, content: list[float], tokens: int, **more: float | str) -> Sample:
    """An answer whose last piece with content is its last, and whose usage comes a second later."""
    last = content[-1] if content else None
    values = {"last": last, "end": (last or start) + 1, "prompt_tokens": 10, **more}
    return Sample(start, 8, content, output_tokens=tokens, **values)  # type: ignore[arg-type]


def test_one_answer_has_one_time_per_token_everywhere() -> None:  # case 42
    found = summary([answer(10.0, [11.0, 13.0], 5)])
    assert found["ttft_s"] == {"count": 1, "mean": 1.0, "p50": 1.0, "p90": 1.0, "p95": 1.0, "p99": 1.0}
    assert found["latency_s"]["mean"] == 3.0
    assert set(found["tpot_s"].values()) == {1, 0.5}
    assert found["itl_s"]["p50"] == 2.0


def test_an_answer_of_one_token_has_no_time_per_token() -> None:  # case 42
    found = summary([answer(0.0, [1.0], 1), answer(0.0, [1.0, 3.0], 5)])
    assert found["tpot_s"]["count"] == 1
    assert found["tpot_s"]["mean"] == 0.5
    assert summary([answer(0.0, [1.0], 1)])["tpot_s"]["mean"] is None


def test_without_content_there_is_no_first_token() -> None:  # case 41
    found = summary([answer(0.0, [], 3), answer(0.0, [2.0, 3.0], 3)])
    assert found["ttft_s"]["count"] == 1
    assert found["ttft_s"]["p50"] == 2.0


def test_throughput_is_of_what_succeeded_over_the_whole_time() -> None:
    samples = [answer(0.0, [1.0, 4.0], 6), answer(2.0, [3.0, 8.0], 14), answer(1.0, [], 0, error="HTTP 500", end=10.0)]
    found = summary(samples)
    assert found["duration_s"] == 10.0
    assert found["requests_per_second"] == 0.2
    assert found["output_tokens_per_second"] == 2.0
    assert found["total_tokens_per_second"] == 4.0
    assert (found["requests"], found["failed"], found["errors"]) == (3, 1, {"HTTP 500": 1})


def test_wanted_and_made_tokens_are_both_told() -> None:  # case 45
    found = summary([answer(0.0, [1.0], 3), answer(0.0, [1.0], 8)])
    assert (found["output_tokens"], found["wanted_output_tokens"]) == (11, 16)


def test_percentiles_interpolate() -> None:
    found = summary([answer(0.0, [float(i)], 1) for i in range(1, 6)])["ttft_s"]
    assert found["p50"] == 3.0
    assert found["p90"] == pytest.approx(4.6)
    assert found["p99"] == pytest.approx(4.96)


def test_nothing_is_no_number() -> None:
    found = summary([])
    assert found["output_tokens_per_second"] is None
    assert found["ttft_s"] == {"count": 0, "mean": None, "p50": None, "p90": None, "p95": None, "p99": None}
