"""What the server counts, for Prometheus, under the names that vLLM gave these things.

Times are taken on the API's side by one monotonic clock, from the arrival of a request to the moment when its output
could be sent; what the engine counts is read from it when it is asked for.
"""

import time
from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from intaglio.engine.interface import EngineStats, Output, Pooling
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.serving.client import AsyncEngine, EngineUnavailable, State

__all__ = ["MeasuredEngine", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
_TOKENS = tuple(m * 10**e for e in range(6) for m in (1, 2, 5))
_GAUGES = {
    "num_requests_running": ("Sequences that hold blocks.", "running"),
    "num_requests_waiting": ("Sequences that wait for blocks.", "waiting"),
}
_COUNTERS = {
    "num_preemptions": ("Sequences that gave their blocks back and began again.", "preemptions"),
    "prefix_cache_queries": ("Prompt tokens looked up in the prefix cache.", "prefix_queries"),
    "prefix_cache_hits": ("Prompt tokens found in the prefix cache.", "prefix_hits"),
    "prompt_tokens": ("Tokens of all prompts.", "prompt_tokens"),
    "generation_tokens": ("Tokens made.", "generated_tokens"),
}


class _EngineCollector(Collector):
    """What the engine said last of itself; nothing where it says nothing."""

    def __init__(self, model_name: str) -> None:
        self.stats: EngineStats | None = None
        self._label = [model_name]

    def collect(self) -> Iterator[Metric]:
        """One family a number."""
        if self.stats is None:
            return
        for name, (text, field) in _GAUGES.items():
            yield self._filled(GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"]), field)
        for name, (text, field) in _COUNTERS.items():
            yield self._filled(CounterMetricFamily(f"vllm:{name}", text, labels=["model_name"]), field)
        usage = GaugeMetricFamily(
            "vllm:kv_cache_usage_perc", "Used share of the blocks, 0 to 1.", labels=["model_name"]
        )
        usage.add_metric(self._label, 1 - self.stats.free_blocks / max(self.stats.num_blocks, 1))
        yield usage

    def _filled(self, family: Family, field: str) -> Family:
        family.add_metric(self._label, getattr(self.stats, field))
        return family


class Metrics:
    """The numbers of one server.

    Args:
        model_name: the label that all of them carry.
    """

    def __init__(self, model_name: str) -> None:
        self._registry = CollectorRegistry()
        self._label = model_name
        self._engine = _EngineCollector(model_name)
        self._registry.register(self._engine)
        self.first_token = self._histogram("time_to_first_token_seconds", "Arrival to the first token.")
        self.between_tokens = self._histogram("inter_token_latency_seconds", "From one output of a choice to the next.")
        self.latency = self._histogram("e2e_request_latency_seconds", "Arrival to the last token.")
        self.queued = self._histogram("request_queue_time_seconds", "Arrival to the first step, tokenising included.")
        self.prefilling = self._histogram("request_prefill_time_seconds", "The first step to the first token.")
        self.decoding = self._histogram("request_decode_time_seconds", "The first token to the last.")
        self.inferring = self._histogram("request_inference_time_seconds", "The first step to the last token.")
        self.prompt = self._histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self.made = self._histogram("request_generation_tokens", "Tokens made for a request, all choices.", _TOKENS)
        self.longest = self._histogram("request_max_num_generation_tokens", "Tokens of its longest choice.", _TOKENS)
        self.step_tokens = self._histogram("iteration_tokens_total", "Tokens that a step worked on.", _TOKENS)
        self._ended = Counter(
            "vllm:request_success_total",
            "Choices that ended, by reason.",
            ["model_name", "finished_reason"],
            registry=self._registry,
        )

    def _histogram(self, name: str, text: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
        family = Histogram(f"vllm:{name}", text, ["model_name"], registry=self._registry, buckets=buckets)
        return family.labels(self._label)

    def ended(self, reason: str) -> None:
        """Counts a choice that ended."""
        self._ended.labels(self._label, reason).inc()

    async def exposition(self, engine: AsyncEngine) -> bytes:
        """The text that Prometheus reads; while the engine loads or is dead, without what only it knows."""
        try:
            self._engine.stats = await engine.stats()
        except EngineUnavailable:
            self._engine.stats = None
        return generate_latest(self._registry)

    def route(self, engine: AsyncEngine) -> Route:
        """`GET /metrics`."""

        async def metrics(request: Request) -> Response:
            return Response(await self.exposition(engine), media_type=CONTENT_TYPE)

        return Route("/metrics", metrics)


class _Request:
    """One request as it is measured."""

    def __init__(self, metrics: Metrics, arrival: float) -> None:
        self._metrics, self._arrival = metrics, arrival
        self._first = self._last = 0.0
        self._begun: float | None = None
        self._previous: dict[int, float] = {}
        self._made: dict[int, int] = {}
        self._open_prompt = True

    def see(self, output: Output) -> None:
        """Takes the next output, now."""
        metrics, self._last = self._metrics, time.monotonic()
        if self._open_prompt:
            self._open_prompt, self._first, self._begun = False, self._last, output.begun
            metrics.first_token.observe(self._first - self._arrival)
            metrics.prompt.observe(output.prompt_tokens)
        if output.choice in self._previous:
            metrics.between_tokens.observe(self._last - self._previous[output.choice])
        self._previous[output.choice] = self._last
        self._made[output.choice] = self._made.get(output.choice, 0) + len(output.token_ids)
        if output.finish_reason:
            metrics.ended(output.finish_reason)

    def complete(self) -> None:
        """All its outputs have come."""
        metrics = self._metrics
        if self._made:
            metrics.latency.observe(self._last - self._arrival)
            metrics.decoding.observe(self._last - self._first)
            metrics.made.observe(sum(self._made.values()))
            metrics.longest.observe(max(self._made.values()))
            if self._begun is not None:
                metrics.queued.observe(self._begun - self._arrival)
                metrics.prefilling.observe(self._first - self._begun)
                metrics.inferring.observe(self._last - self._begun)


class MeasuredEngine:
    """An engine that passes everything on and takes the times of it: an `AsyncEngine` around another."""

    def __init__(self, engine: AsyncEngine, metrics: Metrics) -> None:
        self._engine, self._metrics = engine, metrics

    @property
    def state(self) -> State:
        """See `AsyncEngine`."""
        return self._engine.state

    @property
    def alive(self) -> bool:
        """See `AsyncEngine`."""
        return self._engine.alive

    @property
    def max_model_len(self) -> int:
        """See `AsyncEngine`."""
        return self._engine.max_model_len

    async def generate(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        salt: bytes = b"",
        adapter: str | None = None,
        arrival: float | None = None,
    ) -> AsyncGenerator[Output, None]:
        """See `AsyncEngine`."""
        request = _Request(self._metrics, time.monotonic() if arrival is None else arrival)
        passed_on = self._engine.generate(request_id, prompt_ids, params, priority=priority, salt=salt, adapter=adapter)
        try:
            async with aclosing(passed_on) as outputs:
                async for output in outputs:
                    request.see(output)
                    yield output
        except UserError:  # refused: it never was one of the engine's
            raise
        except BaseException:  # its reader has left, or the engine died
            self._metrics.ended("abort")
            raise
        request.complete()

    async def abort(self, request_id: str) -> None:
        """See `AsyncEngine`."""
        await self._engine.abort(request_id)

    async def embed(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        pooling: Pooling = "mean",
        normalize: bool = True,
        adapter: str | None = None,
    ) -> list[list[float]]:
        """See `AsyncEngine`."""
        return await self._engine.embed(prompts, pooling=pooling, normalize=normalize, adapter=adapter)

    async def score(self, prompts: Sequence[Sequence[int]], *, adapter: str | None = None) -> list[list[float]]:
        """See `AsyncEngine`."""
        return await self._engine.score(prompts, adapter=adapter)

    async def stats(self) -> EngineStats:
        """See `AsyncEngine`."""
        return await self._engine.stats()

    @property
    def adapters(self) -> Collection[str]:
        """See `AsyncEngine`."""
        return self._engine.adapters

    async def load_adapter(self, name: str, directory: str) -> None:
        """See `AsyncEngine`."""
        await self._engine.load_adapter(name, directory)

    async def unload_adapter(self, name: str) -> None:
        """See `AsyncEngine`."""
        await self._engine.unload_adapter(name)
