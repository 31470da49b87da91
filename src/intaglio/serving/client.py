"""What the API asks of an engine, wherever it runs: in a process of its own, in a thread, or in a test's script."""

from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Literal, Protocol

from intaglio.engine.interface import EngineStats, Output, Pooling
from intaglio.engine.sampling_params import SamplingParams

__all__ = ["AsyncEngine", "EngineUnavailable", "State"]

State = Literal["loading", "ready", "draining", "dead"]


class EngineUnavailable(Exception):
    """The engine takes no request now, or has died with one: HTTP 503, or an error in a stream that has begun."""


class AsyncEngine(Protocol):
    """An engine that many requests share; all of it is called on one event loop.

    The tokenizer is no part of it: text becomes ids in the API's process, and ids become text in the engine's.
    """

    @property
    def state(self) -> State:
        """`loading` until the model stands, then `ready`, `draining` from the wish to end on, `dead` after a crash."""

    @property
    def alive(self) -> bool:
        """Whether requests are answered: the state is `ready`."""

    @property
    def max_model_len(self) -> int:
        """Tokens of a prompt and its answer together at most; known once the engine is ready."""

    def generate(
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
        """What is added to the answer, step by step and choice by choice, until all `params.n` choices have ended.

        Leaving the iterator early (`aclose`, a cancelled task) aborts the request.

        Args:
            request_id: unlike that of every request that still runs.
            prompt_ids: not empty.
            params: how it is sampled and ended.
            priority: of requests that wait, the lowest goes first, under the policy `priority`.
            salt: prompts with unlike salts share no cached blocks.
            adapter: the name of one that is loaded; None for the model as it is.
            arrival: `time.monotonic()` when the request came, for the metrics; None for now.

        Raises:
            UserError: the engine refuses the request; before the first output.
            EngineUnavailable: it takes none now, or has died.
        """

    async def abort(self, request_id: str) -> None:
        """Ends a request and frees its blocks; nothing where there is no such request.

        Whoever iterates over it sees its choices end with `abort`.
        """

    async def embed(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        pooling: Pooling = "mean",
        normalize: bool = True,
        adapter: str | None = None,
    ) -> list[list[float]]:
        """One vector a prompt; under one adapter, or none.

        Raises:
            UserError, EngineUnavailable: as `generate`.
        """

    async def score(self, prompts: Sequence[Sequence[int]], *, adapter: str | None = None) -> list[list[float]]:
        """What a reward or classifier model says of each prompt: one number, or one a class.

        Raises:
            UserError, EngineUnavailable: as `generate`; or the model has no such head.
        """

    async def stats(self) -> EngineStats:
        """How the engine stands.

        Raises:
            EngineUnavailable: as `generate`.
        """

    @property
    def adapters(self) -> Collection[str]:
        """The names of the adapters that requests may run under."""

    async def load_adapter(self, name: str, directory: str) -> None:
        """Reads an adapter; an engine that dies and is started again reads it again.

        Args:
            name: what requests call it.
            directory: in PEFT's format; the engine's process reads it.

        Raises:
            UserError: the name is taken, or the directory holds no adapter for this model.
            EngineUnavailable: as `generate`.
        """

    async def unload_adapter(self, name: str) -> None:
        """Takes no further request under an adapter; those that run keep it to their end.

        Raises:
            UserError: there is none of this name.
            EngineUnavailable: as `generate`.
        """
