"""What the server counts: every name once, the right numbers, and nothing made up while there is no engine."""

import asyncio
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.serving.metrics import MeasuredEngine, Metrics
from intaglio.serving.remote import LocalEngine
from stepped_engine import SteppedToy

NAMES = """
num_requests_running num_requests_waiting kv_cache_usage_perc num_preemptions prefix_cache_queries prefix_cache_hits
prompt_tokens generation_tokens request_success iteration_tokens_total request_prompt_tokens request_generation_tokens
request_max_num_generation_tokens time_to_first_token_seconds inter_token_latency_seconds e2e_request_latency_seconds
request_decode_time_seconds request_queue_time_seconds request_prefill_time_seconds request_inference_time_seconds
""".split()


def numbers(text: bytes) -> dict[str, float]:
    """Each sample by its name, without `vllm:` and without the model's label."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            assert sample.labels.pop("model_name") == "toy"
            found["/".join([sample.name.removeprefix("vllm:"), *sample.labels.values()])] = sample.value
    return found


async def measured(*asked: tuple[list[int], SamplingParams]) -> dict[str, float]:
    """The numbers after these requests, one after the other."""
    metrics, local = Metrics("toy"), LocalEngine(SteppedToy(pause=0.01))
    local.on_step = metrics.step_tokens.observe
    await local.start()
    engine = MeasuredEngine(local, metrics)
    for number, (prompt, params) in enumerate(asked):
        async for _ in engine.generate(str(number), prompt, params):
            pass
    found = numbers(await metrics.exposition(engine))
    await local.stop()
    return found


def test_every_name_is_there() -> None:
    metrics = Metrics("toy")

    async def families() -> set[str]:
        local = LocalEngine(SteppedToy())
        await local.start()
        text = await metrics.exposition(local)
        await local.stop()
        return {family.name.removeprefix("vllm:") for family in text_string_to_metric_families(text.decode())}

    assert set(NAMES) <= asyncio.run(families())


def test_tokens_and_times_are_counted() -> None:
    found = asyncio.run(measured(([1, 2, 3], SamplingParams(max_tokens=4)), ([1], SamplingParams(max_tokens=2, n=2))))
    assert found["prompt_tokens_total"] == 4
    assert found["generation_tokens_total"] == 4 + 2 * 2
    assert found["request_prompt_tokens_sum"] == 4
    assert found["request_generation_tokens_sum"] == 8
    assert found["request_max_num_generation_tokens_sum"] == 4 + 2
    assert found["request_success_total/length"] == 3
    assert found["time_to_first_token_seconds_count"] == found["e2e_request_latency_seconds_count"] == 2
    assert found["inter_token_latency_seconds_count"] == 3 + 2
    assert found["iteration_tokens_total_sum"] == 4 + 8
    assert found["iteration_tokens_total_count"] == 4 + 2
    first, whole = found["time_to_first_token_seconds_sum"], found["e2e_request_latency_seconds_sum"]
    assert first >= 0.02
    assert whole - first == pytest.approx(found["request_decode_time_seconds_sum"])
    waited, inferring = found["request_queue_time_seconds_sum"], found["request_inference_time_seconds_sum"]
    assert 0 < waited < whole
    assert waited + inferring == pytest.approx(whole)
    assert waited + found["request_prefill_time_seconds_sum"] == pytest.approx(first)
    assert (found["num_requests_running"], found["kv_cache_usage_perc"]) == (0, 0)


def test_what_is_left_early_counts_as_aborted_and_has_no_latency() -> None:
    async def test() -> dict[str, float]:
        metrics, local = Metrics("toy"), LocalEngine(SteppedToy(pause=0.01))
        await local.start()
        engine = MeasuredEngine(local, metrics)
        outputs = engine.generate("a", [1], SamplingParams(max_tokens=50))
        await anext(outputs)
        during = numbers(await metrics.exposition(engine))
        assert during["num_requests_running"] == 1
        assert during["kv_cache_usage_perc"] == pytest.approx(1 / 256)
        await outputs.aclose()
        found = numbers(await metrics.exposition(engine))
        await local.stop()
        return found

    found = asyncio.run(test())
    assert found["request_success_total/abort"] == 1
    assert found["e2e_request_latency_seconds_count"] == 0
    assert found["num_requests_running"] == 0


def test_what_is_refused_never_ended() -> None:
    async def test() -> dict[str, float]:
        metrics, local = Metrics("toy"), LocalEngine(SteppedToy())
        await local.start()
        engine = MeasuredEngine(local, metrics)
        with pytest.raises(UserError):
            await anext(engine.generate("a", [1] * (local.max_model_len + 1), SamplingParams(max_tokens=1)))
        found = numbers(await metrics.exposition(engine))
        await local.stop()
        return found

    assert not [name for name in asyncio.run(test()) if name.startswith("request_success_total")]


def test_time_counts_from_the_arrival() -> None:
    async def test() -> dict[str, float]:
        metrics, local = Metrics("toy"), LocalEngine(SteppedToy())
        await local.start()
        engine = MeasuredEngine(local, metrics)
        async for _ in engine.generate("a", [1], SamplingParams(max_tokens=1), arrival=time.monotonic() - 100):
            pass
        found = numbers(await metrics.exposition(engine))
        await local.stop()
        return found

    assert asyncio.run(test())["time_to_first_token_seconds_sum"] > 100


def test_without_an_engine_there_are_no_gauges() -> None:
    found = asyncio.run(Metrics("toy").exposition(LocalEngine(SteppedToy())))
    assert b"num_requests_running" not in found
    assert b"time_to_first_token_seconds_count" in found
