"""The figures of a load test: each against its definition, on answers whose times are known."""

import pytest

from intaglio.evaluation.load.latency import Sample, spread, summary


def answer(start: float, content: list[float], tokens: int, **more: float | str) -> Sample:
    """An answer whose last piece with content is its last, and whose usage comes a second later."""
    last = content[-1] if content else None
    values = {"last": last, "end": (last or start) + 1, "prompt_tokens": 10, **more}
    return Sample(start, 8, content=content, output_tokens=tokens, **values)  # type: ignore[arg-type]


def test_one_answer_has_one_time_per_token_everywhere() -> None:  # case 42
    found = summary([answer(10.0, [11.0, 13.0], 5)])
    assert found["ttft_s"].pop("count") == 1
    assert set(found["ttft_s"].values()) == {1.0}
    assert found["latency_s"]["mean"] == 3.0
    assert set(found["tpot_s"].values()) == {1, 0.5}
    assert found["itl_s"]["p50"] == 2.0


def test_an_answer_of_one_token_has_no_time_per_token() -> None:  # case 42
    found = summary([answer(0.0, [1.0], 1), answer(0.0, [1.0, 3.0], 5)])
    assert found["tpot_s"]["count"] == 1
    assert found["tpot_s"]["mean"] == found["tpot_s"]["p1"] == found["tpot_s"]["p99"] == 0.5
    assert summary([answer(0.0, [1.0], 1)])["tpot_s"]["mean"] is None


def test_without_content_there_is_no_first_token() -> None:  # case 41
    found = summary([answer(0.0, [], 3), answer(0.0, [2.0, 3.0], 3)])
    assert found["ttft_s"]["count"] == 1
    assert found["ttft_s"]["min"] == found["ttft_s"]["p50"] == 2.0


def test_throughput_is_of_what_succeeded_over_the_whole_time() -> None:
    failed = answer(1.0, [], 0, error="HTTP 500", detail="dead", end=10.0)
    found = summary([answer(0.0, [1.0, 4.0], 6), answer(2.0, [3.0, 8.0], 14), failed])
    assert found["duration_s"] == 10.0
    assert found["requests_per_second"] == 0.2
    assert found["output_tokens_per_second"] == 2.0
    assert found["total_tokens_per_second"] == 4.0
    assert (found["requests"], found["failed"], found["errors"]) == (3, 1, {"HTTP 500": 1})
    assert found["error_details"] == {"HTTP 500": "dead"}


def test_wanted_and_made_tokens_are_both_told() -> None:  # case 45
    found = summary([answer(0.0, [1.0], 3), answer(0.0, [1.0], 8)])
    assert (found["output_tokens"], found["wanted_output_tokens"]) == (11, 16)
    assert (found["output_tokens_each"]["min"], found["output_tokens_each"]["max"]) == (3, 8)


def test_percentiles_interpolate() -> None:
    found = spread(map(float, range(1, 6)))
    assert (found["min"], found["p25"], found["p50"], found["max"]) == (1, 2, 3, 5)
    assert found["p90"] == pytest.approx(4.6)
    assert found["p99"] == pytest.approx(4.96)


def test_an_open_loop_counts_from_when_a_request_was_due() -> None:
    late = answer(1.0, [3.0], 1, sent=2.5)
    assert (late.ttft, late.lateness) == (2.0, 1.5)
    assert summary([late])["lateness_s"]["mean"] == 1.5
    assert answer(1.0, [3.0], 1).lateness is None


def test_first_turns_and_later_ones_are_told_apart() -> None:
    found = summary([answer(0.0, [4.0], 1), answer(0.0, [1.0], 1, turn=1), answer(0.0, [2.0], 1, turn=2)])
    assert found["first_turn_ttft_s"]["mean"] == 4.0
    assert (found["later_turn_ttft_s"]["count"], found["later_turn_ttft_s"]["mean"]) == (2, 1.5)
    assert "first_turn_ttft_s" not in summary([answer(0.0, [4.0], 1)])


def test_nothing_is_no_number() -> None:
    found = summary([])
    assert found["output_tokens_per_second"] is None
    assert found["ttft_s"].pop("count") == 0
    assert set(found["ttft_s"].values()) == {None}
