"""An engine that says what a test told it to, so that the API can be tested without a model."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from intaglio.engine.detokenizer import Detokenizer
from intaglio.engine.interface import EngineStats, Output, Pooling
from intaglio.engine.logprobs import TokenLogprob
from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.serving.client import EngineUnavailable, State
from intaglio.text.tokenizer import Tokenizer

__all__ = ["ScriptedEngine", "likely"]


@dataclass
class ScriptedEngine:
    """Answers every prompt with the same tokens, one an output.

    Attributes:
        tokenizer: gives ids and text.
        script: what is said, special tokens and all; each choice begins it anew. Choice i says `scripts[i]` if there.
        max_model_len: as the model's.
        pool_tokens: what the K/V pool holds; a longer prompt is refused, as the real engine does.
        pause: seconds before each token.
        breaks_after: tokens after which the engine dies.
        asked: the prompts and parameters that came.
        under: the adapters that they came for.
        adapters: the directories of those that are loaded, by name.
        running: requests that have begun and not ended.
        aborted: requests that were left before their end.
    """

    tokenizer: Tokenizer
    script: str = "Hello there!<|im_end|>"
    scripts: tuple[str, ...] = ()
    max_model_len: int = 256
    pool_tokens: int | None = None
    pause: float = 0.0
    breaks_after: int | None = None
    state: State = "ready"
    asked: list[tuple[list[int], SamplingParams]] = field(default_factory=list)
    under: list[str | None] = field(default_factory=list)
    adapters: dict[str, str] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """See `AsyncEngine`."""
        return self.state == "ready"

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
        assert request_id not in self.running
        if self.pool_tokens is not None and len(prompt_ids) > self.pool_tokens:
            raise UserError(f"the prompt has {len(prompt_ids)} tokens and the cache holds {self.pool_tokens}")
        self.asked.append((list(prompt_ids), params))
        self.under.append(adapter)
        self.running.add(request_id)
        choices = [_Choice(self, i, request_id, list(prompt_ids), params) for i in range(params.n)]
        try:
            while any(not choice.over for choice in choices):
                for choice in choices:
                    if not choice.over:
                        await asyncio.sleep(self.pause)
                        yield choice.step()
        finally:
            self.running.discard(request_id)
            if not all(choice.over for choice in choices):
                self.aborted.append(request_id)

    async def abort(self, request_id: str) -> None:
        """See `AsyncEngine`; tests leave the iterator instead."""

    async def embed(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        pooling: Pooling = "mean",
        normalize: bool = True,
        adapter: str | None = None,
    ) -> list[list[float]]:
        """The number of tokens, and the first."""
        self.under.append(adapter)
        return [[float(len(prompt)), float(prompt[0]), 0.1] for prompt in prompts]

    async def score(self, prompts: Sequence[Sequence[int]], *, adapter: str | None = None) -> list[list[float]]:
        """See `AsyncEngine`."""
        return [[0.0] for _ in prompts]

    async def stats(self) -> EngineStats:
        """See `AsyncEngine`."""
        return EngineStats(running=len(self.running))

    async def load_adapter(self, name: str, directory: str) -> None:
        """See `AsyncEngine`; takes whatever does not say `refused`."""
        await asyncio.sleep(self.pause)
        if "refused" in directory:
            raise UserError("for another model", where=directory)
        assert name not in self.adapters
        self.adapters[name] = directory

    async def unload_adapter(self, name: str) -> None:
        """See `AsyncEngine`."""
        await asyncio.sleep(self.pause)
        del self.adapters[name]


class _Choice:
    def __init__(
        self, engine: ScriptedEngine, index: int, request_id: str, prompt: list[int], params: SamplingParams
    ) -> None:
        script = engine.scripts[index] if index < len(engine.scripts) else engine.script
        self.engine, self.index, self.request_id, self.prompt, self.params = engine, index, request_id, prompt, params
        self.ids = engine.tokenizer.encode(script, add_special_tokens=False)
        self.detokenizer = Detokenizer(engine.tokenizer, params.skip_special_tokens)
        self.made = 0
        self.over = False

    def step(self) -> Output:
        """The next token."""
        if self.made == self.engine.breaks_after:
            self.engine.state = "dead"
            raise EngineUnavailable("the engine has died")
        token_id = self.ids[self.made % len(self.ids)]
        self.made += 1
        ends = (() if self.params.ignore_eos else self.engine.tokenizer.eos_token_ids, self.params.stop_token_ids)
        stopped = any(token_id in ids for ids in ends)
        self.over = stopped or self.made == self.params.max_tokens
        text = "" if stopped else self.detokenizer.add([token_id])
        told = None if self.params.logprobs is None else [likely(token_id, self.params.logprobs)]
        asked = self.params.prompt_logprobs
        first = self.made == 1 and self.index == 0
        return Output(
            self.request_id,
            self.index,
            [token_id],
            text + (self.detokenizer.flush() if self.over and not stopped else ""),
            told,
            None if asked is None or not first else [None, *(likely(i, asked) for i in self.prompt[1:])],
            ("stop" if stopped else "length") if self.over else None,
            token_id if token_id in self.params.stop_token_ids else None,
            len(self.prompt),
            1,
        )


def likely(token_id: int, top: int) -> TokenLogprob:
    """A made-up log-probability: the token is the second likeliest."""
    others = [(token_id + 1, -0.5), (token_id, -1.25), *((token_id + 2 + i, -2.0 - i) for i in range(top))]
    return TokenLogprob(token_id, -1.25, 2, tuple(others[:top]))
