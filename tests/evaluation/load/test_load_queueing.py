"""What a server says about its queue."""

from intaglio.evaluation.load.queueing import Waited, mean_between, waited
from intaglio.evaluation.load.target import Target
from scripted_stream import Script, ScriptedTransport
from virtual_time import run_virtual

TEXT = """# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{le="0.3",model_name="a"} 2.0
vllm:request_queue_time_seconds_sum{model_name="a"} 1.5
vllm:request_queue_time_seconds_count{model_name="a"} 3.0
vllm:request_queue_time_seconds_sum{model_name="b"} 0.5
vllm:request_queue_time_seconds_count{model_name="b"} 1.0
vllm:request_prefill_time_seconds_sum{model_name="a"} 9.0
"""


def look(script: Script) -> Waited | None:
    async def test() -> Waited | None:
        async with Target("x", transport=ScriptedTransport(script)).client() as client:
            return await waited(client)

    return run_virtual(test())


def test_the_histogram_is_summed_over_models() -> None:
    assert look(Script(metrics=lambda: TEXT)) == (2.0, 4.0)


def test_a_server_that_says_nothing_is_no_queue_of_zero() -> None:
    assert look(Script()) is None
    assert look(Script(metrics=lambda: "other 1\n")) is None
    assert look(Script(metrics=lambda: "a_request_queue_time_seconds_sum NAN-\n")) is None
    for before, after in [(None, (1.0, 1.0)), ((1.0, 1.0), None), ((1.0, 1.0), (1.0, 1.0))]:
        found = mean_between(before, after)
        assert (found["count"], found["mean"]) == (0, None)


def test_what_waited_between_two_looks_has_a_mean_alone() -> None:
    found = mean_between((1.0, 2.0), (4.0, 8.0))
    assert (found["count"], found["mean"], found["p99"]) == (6, 0.5, None)
