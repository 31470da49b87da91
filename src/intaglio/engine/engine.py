"""The engine: requests come in, each step computes what the scheduler chose, and what was made goes out.

engine.add(...)                       # at any time between two steps
while engine.has_work:
    for output in engine.step(): ...
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import Any

import torch
from torch import Tensor

from intaglio.engine.adapted import Adapters
from intaglio.engine.capacity import pools_for
from intaglio.engine.chooser import Chooser
from intaglio.engine.interface import EngineConfig, EngineStats, Output, Pooling
from intaglio.engine.logprobs import TokenLogprob, token_logprobs
from intaglio.engine.paged import Chunk, PagedMemory
from intaglio.engine.pooling import embed, score
from intaglio.engine.runner import Runner
from intaglio.engine.sampler import choose
from intaglio.engine.sampling_params import SamplingParams
from intaglio.engine.scheduler import Scheduled, Scheduler
from intaglio.engine.sequence import Sequence as Text
from intaglio.engine.stopping import Stopping
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.models.heads import SequenceClassifier, decoder_of
from intaglio.parts.updates import AdapterUpdates
from intaglio.specs import DecoderSpec, DynamicScaling
from intaglio.text.tokenizer import Tokenizer

__all__ = ["DEFAULT", "Engine", "EngineConfig", "EngineStats", "Output", "check_prompt"]

DEFAULT = EngineConfig()


class Engine:
    """Answers many requests at once with one model; for one thread.

    Args:
        model: a decoder, or one with a head, which is asked for vectors and scores alone.
        tokenizer: for EOS ids, stop strings and text.
        config: see `EngineConfig`.

    Raises:
        UserError: a model of another kind; not even one block of keys and values fits into memory; or a context beyond
            the model's is asked for.
    """

    def __init__(self, model: Any, tokenizer: Tokenizer, config: EngineConfig = DEFAULT) -> None:
        if not isinstance(model, Decoder | SequenceClassifier):
            raise UserError("the engine is for decoders", mend="take a model that continues its prompt")
        self._model, self._tokenizer, self._config = model, tokenizer, config
        decoder = decoder_of(model)
        weight, limit = decoder.embed_tokens.weight, _longest(decoder, config)
        pools = pools_for(decoder.spec, config, limit, weight.dtype, weight.device)
        self._spec, self._trained = decoder.spec, _trained_length(decoder.spec)
        self._memory = PagedMemory(
            decoder.spec,
            [pool.num_blocks for pool in pools],
            config.block_size,
            limit,
            dtype=weight.dtype,
            device=weight.device,
        )
        self._adapters = Adapters(model, deterministic=config.deterministic)
        self._runner = Runner(decoder, self._memory, deterministic=config.deterministic, adapters=self._adapters)
        self._scheduler = Scheduler(
            pools,
            limit,
            max_tokens_per_step=config.max_tokens_per_step,
            max_sequences=config.max_sequences,
            policy=config.policy,
            prefix_caching=config.prefix_caching,
        )
        self._requests: dict[str, _Request] = {}
        self._choices: dict[int, _Choice] = {}
        self._arrivals = count()
        self._prompt_tokens = self._generated_tokens = self._computed_tokens = 0

    @property
    def max_model_len(self) -> int:
        """Tokens of a prompt and its answer together at most: what the model's context and the cache both hold."""
        return self._scheduler.max_length

    @property
    def adapters(self) -> list[str]:
        """The names of the adapters that requests may ask for."""
        return self._adapters.names

    def load_adapter(self, name: str, updates: AdapterUpdates) -> None:
        """Takes an adapter in, between two steps; from now on requests may ask for it by name.

        Raises:
            UserError: the name is taken.
        """
        self._adapters.load(name, updates)

    def unload_adapter(self, name: str) -> None:
        """Refuses an adapter to all requests to come; those that run keep it until their end, then its memory goes.

        Raises:
            UserError: there is none of this name.
        """
        self._adapters.unload(name)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._scheduler.has_work

    def add(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        salt: bytes = b"",
        adapter: str | None = None,
    ) -> None:
        """Queues a request.

        Args:
            request_id: unlike that of any request that has not ended.
            prompt_ids: the prompt.
            params: how it is sampled and ended; without `max_tokens`, by what the context holds.
            priority: the lowest goes first, where the policy is `priority`.
            salt: what keys and values depend on besides the tokens: prompts with unlike salts share no blocks.
            adapter: the name of the one that answers; None for the model itself.

        Raises:
            UserError: it could never be answered: no tokens, too many, or unknown ones; or beams are asked for, or an
                adapter that is not there.
        """
        assert request_id not in self._requests, f"request {request_id} is not over yet"
        self._check(prompt_ids, params)
        most = params.max_tokens or max(self.max_model_len - len(prompt_ids), 1)
        request = _Request(params, most, self._adapters.number(adapter))
        sequence = Text(
            request_id,
            list(prompt_ids),
            params,
            max_tokens=most,
            priority=priority,
            arrival=float(next(self._arrivals)),
            salt=self._salt(request.adapter, len(prompt_ids) + most) + salt,
            reads_cache=request.skipped != 0,
            most_cached=request.skipped,
        )
        choice = self._choice(request, sequence)
        self._scheduler.add(sequence)
        self._requests[request_id], self._choices[sequence.id] = request, choice
        self._adapters.take(request.adapter)
        self._prompt_tokens += len(prompt_ids)

    def _check(self, prompt_ids: Sequence[int], params: SamplingParams) -> None:
        if not isinstance(self._model, Decoder):
            raise UserError("this model has a head that scores texts, and makes none")
        if params.num_beams > 1:
            raise UserError("beam search makes no pieces", where="num_beams", mend="set num_beams to 1")
        check_prompt(prompt_ids, self._spec.vocab_size)
        if params.prompt_logprobs_from > len(prompt_ids):
            what = f"{params.prompt_logprobs_from} is beyond the prompt, which has {len(prompt_ids)} tokens"
            raise UserError(what, where="prompt_logprobs_from")

    def _salt(self, adapter: int, planned: int) -> bytes:
        """What else keys hang on: the adapter, and the planned length where dynamic rotary scaling is beyond the
        trained one. Always equally long, so that no user's salt can look like it."""
        stretched = self._trained is not None and planned > self._trained
        return adapter.to_bytes(8) + (planned if stretched else 0).to_bytes(8)

    def _choice(self, request: "_Request", sequence: Text) -> "_Choice":
        params = request.params
        chooser = Chooser(params, self._tokenizer, self._spec.vocab_size, sequence.tokens, sequence.choice)
        stopping = Stopping.of(params, self._tokenizer, sequence.tokens, request.max_tokens)
        return _Choice(request, sequence, chooser, stopping)

    def abort(self, request_id: str) -> None:
        """Ends a request and frees its blocks; nothing where it is not known. There is no last output."""
        for sequence in self._scheduler.abort(request_id):
            del self._choices[sequence.id]
        if request_id in self._requests:
            self._forget(request_id)

    # A step

    @torch.inference_mode()
    def step(self) -> list[Output]:
        """One forward over what the scheduler chose: what it added to each choice that got a token."""
        step = self._scheduler.schedule()
        for copy in step.copies:
            self._memory.copy(copy.group, copy.source, copy.target)
        if not step.scheduled:
            return []
        for part in step.scheduled:
            self._requests[part.sequence.request_id].begin()
        step.scheduled.sort(key=self._adapter)  # rows of one adapter behind each other
        hidden = self._runner.hidden_states([self._chunk(part) for part in step.scheduled])  # (N, E)
        self._scheduler.advance(step)
        ends = list(accumulate(part.count for part in step.scheduled))
        self._computed_tokens += ends[-1]
        self._look_at_prompts(step.scheduled, ends, hidden)
        sampling = [(part, end - 1) for part, end in zip(step.scheduled, ends, strict=True) if part.samples]
        if not sampling:
            return []
        adapters = [self._adapter(part) for part, _ in sampling]
        logits = self._runner.logits(hidden[[row for _, row in sampling]], adapters)  # (R, V)
        return self._sample([part.sequence for part, _ in sampling], logits)

    def _chunk(self, part: Scheduled) -> Chunk:
        sequence, end = part.sequence, part.start + part.count
        planned = sequence.num_prompt_tokens + (sequence.max_tokens or 0)
        return Chunk(sequence.tokens[part.start : end], part.start, sequence.block_tables, planned, self._adapter(part))

    def _adapter(self, part: Scheduled) -> int:
        return self._requests[part.sequence.request_id].adapter

    def _look_at_prompts(self, parts: Sequence[Scheduled], ends: Sequence[int], hidden: Tensor) -> None:
        """Books the log-probabilities of prompt tokens, where they are wanted and not known yet."""
        rows, ids, owners = [], [], []
        for part, end in zip(parts, ends, strict=True):
            request, sequence = self._requests[part.sequence.request_id], part.sequence
            for place in request.unseen(part):  # what is said at a place is about the token behind it
                rows.append(end - part.count + place - part.start)
                ids.append(sequence.tokens[place + 1])
                owners.append(request)
        if rows:
            top = [owner.params.prompt_logprobs or 0 for owner in owners]
            logits = self._runner.logits(hidden[rows], [owner.adapter for owner in owners])
            found = token_logprobs(logits, ids, top)
            for owner, one in zip(owners, found, strict=True):
                assert owner.prompt_logprobs is not None
                owner.prompt_logprobs.append(one)

    def _sample(self, sequences: Sequence[Text], logits: Tensor) -> list[Output]:
        """The next token of each sequence, and of those that fork from it now: logits (R, V)."""
        choices = [[self._choices[sequence.id], *self._fork(sequence)] for sequence in sequences]
        rows = [row for row, forks in enumerate(choices) for _ in forks]
        every = [choice for forks in choices for choice in forks]
        if len(rows) > len(sequences):
            logits = logits[rows]
        sampled = choose(logits, [choice.chooser for choice in every])
        ids = sampled.ids.tolist()
        self._generated_tokens += len(ids)
        return [self._take(*one) for one in zip(every, ids, sampled.logprobs, strict=True)]

    def _fork(self, sequence: Text) -> list["_Choice"]:
        """The further choices of a request whose prompt has just been read."""
        request = self._requests[sequence.request_id]
        if len(sequence.tokens) > sequence.num_prompt_tokens or request.params.n == 1:
            return []
        forks = self._scheduler.fork(sequence, request.params.n - 1)
        for fork in forks:
            self._choices[fork.id] = self._choice(request, fork)
        return [self._choices[fork.id] for fork in forks]

    def _take(self, choice: "_Choice", token: int, logprob: TokenLogprob | None) -> Output:
        """Adds a token to a choice; ends it if that does."""
        request, sequence, stopping = choice.request, choice.sequence, choice.stopping
        sequence.tokens.append(token)
        choice.chooser.take(token)
        text = stopping.add(token)
        if choice.chooser.over:
            text += stopping.close("stop")
        if stopping.finish_reason:
            self._end(choice)
        first = len(sequence.tokens) == sequence.num_prompt_tokens + 1
        return Output(
            sequence.request_id,
            sequence.choice,
            [token],
            text,
            logprobs=None if logprob is None else [logprob],
            prompt_logprobs=request.prompt_logprobs if first and sequence.choice == 0 else None,
            finish_reason=stopping.finish_reason,
            stop_reason=_asked_for(stopping.stopped_by, request.params),
            prompt_tokens=sequence.num_prompt_tokens,
            cached_tokens=sequence.cached,
            begun=request.begun if first and sequence.choice == 0 else None,
        )

    def _end(self, choice: "_Choice") -> None:
        self._scheduler.finish(choice.sequence)
        del self._choices[choice.sequence.id]
        choice.request.open -= 1
        if not choice.request.open:
            self._forget(choice.sequence.request_id)

    def _forget(self, request_id: str) -> None:
        self._adapters.leave(self._requests.pop(request_id).adapter)

    # What makes no tokens

    def embed(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        pooling: Pooling = "mean",
        normalize: bool = True,
        adapter: str | None = None,
    ) -> Tensor:
        """A vector for each prompt, (D, E) in fp32: see `pooling.embed`; under one adapter, or none.

        Raises:
            UserError: a prompt that is empty, too long, or of unknown tokens; or an adapter that is not there.
        """
        self._check_whole(prompts)
        with self._adapters.alone(adapter):
            return embed(self._model, prompts, pooling, normalize, self._config.max_tokens_per_step)

    def score(self, prompts: Sequence[Sequence[int]], *, adapter: str | None = None) -> list[list[float]]:
        """What the model's head says of each prompt: one number (a reward), or one for each class; see `embed`.

        Raises:
            UserError: as `embed`; or the model has no such head.
        """
        if not isinstance(self._model, SequenceClassifier):
            raise UserError("this model has no head that scores texts")
        self._check_whole(prompts)
        with self._adapters.alone(adapter):
            scores: list[list[float]] = score(self._model, prompts, self._config.max_tokens_per_step).tolist()
        return scores

    def _check_whole(self, prompts: Sequence[Sequence[int]]) -> None:
        limit = self._scheduler.max_model_len
        for row, prompt in enumerate(prompts):
            where = f"prompt {row + 1}"
            check_prompt(prompt, self._spec.vocab_size, where)
            if len(prompt) > limit:
                raise UserError(f"{len(prompt)} tokens do not fit into a context of {limit}", where=where)

    # How it stands

    def stats(self) -> EngineStats:
        """See `EngineStats`."""
        scheduler = self._scheduler
        return EngineStats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            free_blocks=sum(pool.num_free for pool in scheduler.pools),
            num_blocks=sum(pool.num_blocks for pool in scheduler.pools),
            preemptions=scheduler.preemptions,
            prefix_queries=scheduler.prefix_queries,
            prefix_hits=scheduler.prefix_hits,
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            computed_tokens=self._computed_tokens,
        )


@dataclass
class _Request:
    """What the choices of one request share.

    Attributes:
        max_tokens: of each choice.
        adapter: its number.
        open: choices that have not ended.
        prompt_logprobs: of the prompt's tokens as far as they are known, those before the first wanted one having none,
            and the first of all; None if not wanted.
        begun: when its first step was.
    """

    params: SamplingParams
    max_tokens: int
    adapter: int
    open: int = field(init=False)
    prompt_logprobs: list[TokenLogprob | None] | None = field(init=False)
    begun: float | None = None

    def __post_init__(self) -> None:
        self.open = self.params.n
        self.prompt_logprobs = None if self.skipped is None else [None] * (self.skipped + 1)

    @property
    def skipped(self) -> int | None:
        """Tokens of the prompt at most that need not be computed; None: all but the last."""
        return None if self.params.prompt_logprobs is None else max(self.params.prompt_logprobs_from - 1, 0)

    def begin(self) -> None:
        """Notes the time of the first step."""
        if self.begun is None:
            self.begun = time.monotonic()

    def unseen(self, part: Scheduled) -> range:
        """The places of `part` that say of a prompt token what is not known yet."""
        if self.prompt_logprobs is None:
            return range(0)
        last = min(part.start + part.count, part.sequence.num_prompt_tokens - 1)
        return range(max(part.start, len(self.prompt_logprobs) - 1), last)


@dataclass
class _Choice:
    """One text of a request while it grows."""

    request: _Request
    sequence: Text
    chooser: Chooser
    stopping: Stopping


def _longest(decoder: Decoder, config: EngineConfig) -> int:
    limit = decoder.spec.context_limit
    if config.max_model_len is not None and config.max_model_len > limit:
        what = f"{config.max_model_len} tokens are more than the model's context of {limit}"
        raise UserError(what, where="max_model_len", mend=f"at most {limit}")
    return config.max_model_len or limit


def _trained_length(spec: DecoderSpec) -> int | None:
    """Up to where dynamic rotary scaling changes nothing, in any layer; None where there is none."""
    ropes = [getattr(block.attention, "rope", None) for block in spec.blocks]
    scalings = [rope.scaling for rope in ropes if rope and isinstance(rope.scaling, DynamicScaling)]
    return min((scaling.original_max_position_embeddings for scaling in scalings), default=None)


def check_prompt(prompt: Sequence[int], vocab_size: int, where: str = "prompt") -> None:
    """Whether a model with so many tokens can read the prompt.

    Raises:
        UserError: there is nothing in it, or a token that the model does not have.
    """
    if not prompt:
        raise UserError("the prompt is empty", where=where, mend="give at least one token")
    for token in (max(prompt), min(prompt)):
        if not 0 <= token < vocab_size:
            what = f"token {token} is beyond the model's vocabulary of {vocab_size}"
            raise UserError(what, where=where, mend="the tokenizer belongs to another model")


def _asked_for(stopped_by: int | str | None, params: SamplingParams) -> int | str | None:
    """The model's own end is nothing that was asked for."""
    return stopped_by if isinstance(stopped_by, str) or stopped_by in params.stop_token_ids else None
