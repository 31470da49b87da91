"""`LLM`: a model with its tokenizer, for those who want text and not tensors."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from intaglio.checkpoints.classifiers import is_classifier, load_classifier
from intaglio.checkpoints.models import find_model, load_model, load_tokenizer
from intaglio.engine.beam import Hypothesis, beam_search
from intaglio.engine.engine import DEFAULT, Engine
from intaglio.engine.generate import Desk, Piece, check_rows, generate, most_tokens
from intaglio.engine.generation_config import recommended_params
from intaglio.engine.interface import EngineConfig
from intaglio.engine.logprobs import TokenLogprob
from intaglio.engine.packed import can_pack, pack
from intaglio.engine.sampling_params import SamplingParams
from intaglio.engine.session import session_class
from intaglio.engine.stopping import StopRules
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.text.chat import render_chat
from intaglio.text.tokenizer import Tokenizer

__all__ = ["LLM", "Completion", "Timing"]

DEFAULT_PARAMS = SamplingParams()


@dataclass(frozen=True)
class Timing:
    """How long one batch took.

    Attributes:
        rows: prompts in the batch.
        prompt_tokens: of all rows.
        new_tokens: of all rows.
        first_s: seconds until every row had its first token (the prompts' forward); 0 where beams were searched.
        total_s: seconds until the last token.
    """

    rows: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    first_s: float = 0.0
    total_s: float = 0.0

    def __add__(self, other: "Timing") -> "Timing":
        """Two batches, one after the other."""
        return Timing(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def prompt_tokens_per_second(self) -> float:
        """Prompt tokens over the time to the first tokens."""
        return self.prompt_tokens / self.first_s if self.first_s else 0.0

    @property
    def tokens_per_second(self) -> float:
        """New tokens behind the first of each row, over the time they took: the prompts do not count."""
        decoding = self.total_s - self.first_s
        return (self.new_tokens - self.rows) / decoding if decoding > 0 else 0.0


@dataclass(frozen=True)
class Completion:
    """One continued prompt.

    Attributes:
        text: without special tokens, cut before a stop string.
        token_ids: all that were made, the one that ended it included.
        log_probs: of those tokens, under the model itself.
        finish_reason: `stop` or `length`.
        prompt_tokens: length of the prompt.
        logprobs: of those tokens too, with as many of the likeliest beside each as `params.logprobs` says; None where
            beams were searched.
        prompt_logprobs: of the prompt's tokens, None for its first; where `params.prompt_logprobs` asks for them, with
            the first of `n` choices.
    """

    text: str
    token_ids: list[int]
    log_probs: list[float]
    finish_reason: str
    prompt_tokens: int
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob | None] | None = None


def _completion(pieces: Sequence[Piece], prompt_tokens: int) -> Completion:
    """What the pieces of one choice add up to."""
    return Completion(
        "".join([piece.text for piece in pieces]),
        [piece.token_id for piece in pieces],
        [piece.log_prob for piece in pieces],
        pieces[-1].finish_reason or "",
        prompt_tokens,
        [piece.logprob for piece in pieces],
        pieces[0].prompt_logprobs,
    )


class LLM:
    """A model that continues prompts and answers chats.

    Args:
        model: a pulled name, a directory or a GGUF file.
        dtype: `float32`, `bfloat16`, ...; None takes the one the weights are stored in.
        device: `cpu`, `cuda`, `mps`.
        config: of the engine, for a decoder.
        loaded: the model itself, where it has been read already (with an adapter merged into it, say).
        tokenizer: in place of the model's own.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        dtype: str | None = None,
        device: str = "cpu",
        config: EngineConfig = DEFAULT,
        loaded: Any = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        path = find_model(model)
        # the tokenizer first: it is quick to say what is missing
        tokenizer = load_tokenizer(path) if tokenizer is None else tokenizer
        ready = _prepared(_load(path, dtype, device) if loaded is None else loaded, config.weights)
        self._hold(path, ready, tokenizer, config)

    @classmethod
    def around(cls, model: Any, tokenizer: Tokenizer, config: EngineConfig = DEFAULT) -> Self:
        """One over a model that stays as it is: nothing is laid out anew, and no directory recommends anything."""
        made = cls.__new__(cls)
        made._hold(None, model, tokenizer, config)
        return made

    def _hold(self, path: Path | None, model: Any, tokenizer: Tokenizer, config: EngineConfig) -> None:
        self._path, self._config = path, config
        self.model: Any = model
        self.tokenizer: Tokenizer = tokenizer
        self.timing = Timing()

    @cached_property
    def engine(self) -> Engine:
        """The engine of a decoder or a classifier, made when it is first used; its prefix cache lives as long as this.

        Raises:
            UserError: see `Engine`; or the model is of another kind.
        """
        return Engine(self.model, self.tokenizer, self._config)

    @cached_property
    def _desk(self) -> Desk:
        return Desk(self.engine)

    def recommended(self, **changes: Any) -> SamplingParams:
        """How the model's own directory asks it to be run, with `changes`: see `recommended_params`."""
        return SamplingParams(**changes) if self._path is None else recommended_params(self._path, **changes)

    def generate(
        self, prompts: str | Sequence[str], params: SamplingParams | Sequence[SamplingParams] = DEFAULT_PARAMS
    ) -> list[Completion]:
        """Continues one prompt or a batch of them; with `n` choices, n completions a prompt.

        Raises:
            UserError: an empty prompt, or more tokens than the context holds.
        """
        texts = [prompts] if isinstance(prompts, str) else prompts
        return self.complete(self.tokenizer.encode_batch(texts), params)

    def complete(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[Completion]:
        """The same with prompts as token ids."""
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        if any(p.num_beams > 1 for p in each):
            return self._search(prompts, each)
        rows: list[list[list[Piece]]] = [[[] for _ in range(p.n)] for p in each]
        for piece in self.stream(prompts, each):
            rows[piece.row][piece.choice].append(piece)
        return [_completion(one, len(prompt)) for row, prompt in zip(rows, prompts, strict=True) for one in row]

    def _search(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[Completion]:
        """The best text that beam search finds for each prompt."""
        one = params[0]
        if any(p != one for p in params):
            raise UserError("rows that are searched together must be searched alike", mend="give one SamplingParams")
        most = [most_tokens(self.model, prompt, one, row) for row, prompt in enumerate(prompts)]
        ends = StopRules.of(one, self.tokenizer.eos_token_ids).ids
        session = session_class(self.model)(self.model, most)
        start = time.perf_counter()
        found = beam_search(session, prompts, one, ends, most)
        made = sum(len(best[0].ids) for best in found)
        self.timing = Timing(len(prompts), sum(map(len, prompts)), made, 0.0, time.perf_counter() - start)
        return [self._found(best[0], ends, len(prompt)) for best, prompt in zip(found, prompts, strict=True)]

    def _found(self, best: Hypothesis, ends: Collection[int], prompt_tokens: int) -> Completion:
        reason = "stop" if best.ids[-1] in ends else "length"
        shown = best.ids[:-1] if reason == "stop" else best.ids
        return Completion(self.tokenizer.decode(shown), best.ids, best.log_probs, reason, prompt_tokens)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams = DEFAULT_PARAMS,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Iterator[str]:
        """The answer to a conversation, in pieces as they come.

        Raises:
            UserError: no chat template, messages it cannot render, or more tokens than the context holds.
        """
        prompt = render_chat(self.tokenizer, messages, tools=tools, add_generation_prompt=True)
        for piece in self.stream([prompt.ids], [params]):
            yield piece.text

    def stream(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> Iterator[Piece]:
        """The pieces of all rows on token ids, as they come; `timing` tells afterwards how long it took.

        Raises:
            UserError: see `generate`.
        """
        start, first = time.perf_counter(), 0.0
        prompt_tokens, begun = sum(map(len, prompts)), set[tuple[int, int]]()
        for made, piece in enumerate(self._pieces(prompts, params), 1):
            elapsed = time.perf_counter() - start
            if (piece.row, piece.choice) not in begun:
                begun.add((piece.row, piece.choice))
                first = elapsed
            self.timing = Timing(len(begun), prompt_tokens, made, first, elapsed)
            yield piece

    def _pieces(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> Iterator[Piece]:
        if not isinstance(self.model, Decoder):
            return generate(self.model, self.tokenizer, prompts, params)
        check_rows(self.model, prompts, params)
        return self._desk.pieces(prompts, params)


def _load(path: Path, dtype: str | None, device: str) -> Any:
    """The model at `path`, a head included."""
    return load_classifier(path, dtype, device) if is_classifier(path) else load_model(path, dtype=dtype, device=device)


def _prepared(model: Any, weights: Literal["int8", "int4"] | None) -> Any:
    """The model laid out for generating, where it can be."""
    if isinstance(model, Decoder) and (weights or can_pack(model)):
        return pack(model, weights)
    if weights:
        raise UserError(f"{weights} weights are for decoders", where="weights")
    return model
