"""What the engine is told and what it says: plain data, which may cross into a process that holds no model."""

from dataclasses import dataclass
from typing import Literal

from intaglio.engine.logprobs import TokenLogprob

__all__ = ["EngineConfig", "EngineStats", "Output", "Pooling"]

Pooling = Literal["mean", "last"]
"""How a text becomes one vector: the `mean` over its tokens, or its `last` token, which alone has seen all of it."""


@dataclass(frozen=True)
class EngineConfig:
    """How one engine divides its memory and its steps.

    Attributes:
        block_size: token slots in a block of the K/V cache.
        num_blocks: blocks in the pool; None to take as many as `kv_memory_bytes` hold.
        kv_memory_bytes: memory of the pool; None for a share of what is free.
        max_model_len: tokens of a prompt and its answer together at most; None for as many as the model's context.
        max_sequences: sequences that run at once.
        max_tokens_per_step: tokens in one forward, of prompts and of answers together.
        prefix_caching: whether full blocks are shared between prompts that begin alike.
        deterministic: whether greedy answers are the same, bit for bit, whatever they are batched with.
        policy: who waits: `fcfs` the last come, `priority` the highest number.
        weights: None for the model's own, `int8` or `int4` for weight-only quantisation.
    """

    block_size: int = 16
    num_blocks: int | None = None
    kv_memory_bytes: int | None = None
    max_model_len: int | None = None
    max_sequences: int = 256
    max_tokens_per_step: int = 512
    prefix_caching: bool = True
    deterministic: bool = False
    policy: Literal["fcfs", "priority"] = "fcfs"
    weights: Literal["int8", "int4"] | None = None


@dataclass(frozen=True)
class Output:
    """What one step has added to one choice of a request.

    Attributes:
        request_id: as it was added.
        choice: 0 to n - 1.
        token_ids: made since the choice's last output.
        text: shown since then; held back while it could still become a stop string or half a character.
        logprobs: of `token_ids`, where they were asked for.
        prompt_logprobs: of the prompt, the first being None; in the first output only, where they were asked for.
        finish_reason: `stop`, `length` or `abort` in the choice's last output, else None.
        stop_reason: the stop string, or the stop token that the user asked for, which ended it.
        prompt_tokens: length of the prompt.
        cached_tokens: of these, found in the prefix cache.
        begun: `time.monotonic()` of the request's first step, in its first output; one clock for all processes here.
    """

    request_id: str
    choice: int
    token_ids: list[int]
    text: str
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    begun: float | None = None


@dataclass(frozen=True)
class EngineStats:
    """The engine at one moment, and what it has counted since it started.

    Attributes:
        running: sequences with blocks.
        waiting: sequences without.
        free_blocks: blocks that nobody uses; those kept for the prefix cache are among them.
        num_blocks: of the pool.
        preemptions: sequences that gave their blocks back and began again.
        prefix_queries: prompt tokens looked up in the prefix cache.
        prefix_hits: of these, found.
        prompt_tokens: of all requests that began.
        generated_tokens: of all choices.
        computed_tokens: positions that went through the model, of prompts and of answers, recomputed ones too.
    """

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    num_blocks: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    computed_tokens: int = 0
