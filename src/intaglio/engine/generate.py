"""Text from any model of ours, token by token: decoders on the engine, the others a batch at a time."""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch

from intaglio.engine.chooser import Chooser
from intaglio.engine.engine import Engine, check_prompt
from intaglio.engine.interface import EngineConfig, Output
from intaglio.engine.logprobs import TokenLogprob
from intaglio.engine.sampler import choose
from intaglio.engine.sampling_params import SamplingParams
from intaglio.engine.session import Session, session_class
from intaglio.engine.stopping import Stopping
from intaglio.errors import UserError
from intaglio.models.decoder import Decoder
from intaglio.text.tokenizer import Tokenizer

__all__ = ["Desk", "Piece", "check_rows", "generate", "most_tokens"]


@dataclass(frozen=True)
class Piece:
    """What one choice for one prompt made in one step.

    Attributes:
        row: which prompt.
        logprob: the token, and how likely it was under the model itself.
        text: what may be shown now; tokens of half a character, or of what may become a stop string, show nothing.
        finish_reason: set on the choice's last piece.
        choice: which of the prompt's `n` choices.
        prompt_logprobs: in the prompt's first piece, where they were asked for: see `Output`.
    """

    row: int
    logprob: TokenLogprob
    text: str
    finish_reason: str | None
    choice: int = 0
    prompt_logprobs: list[TokenLogprob | None] | None = None

    @property
    def token_id(self) -> int:
        """The token."""
        return self.logprob.token_id

    @property
    def log_prob(self) -> float:
        """Its log-probability."""
        return self.logprob.log_prob


def generate(
    model: Any,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    at_once: int = 256,
) -> Iterator[Piece]:
    """Continues every prompt, or answers it where the model writes a text of its own; pieces come as they are made.

    Args:
        model: of any kind of ours, on its device, in its dtype.
        tokenizer: for EOS ids, stop strings and text.
        prompts: ids, one list a row, of any lengths.
        params: one for each row.
        at_once: how many texts a decoder works on at a time; other models work on all.

    Raises:
        UserError: an empty prompt, an id beyond the vocabulary, or more tokens than the context holds; a row that asks
            for beam search, whose text is known only at the end, or for what only decoders do.
    """
    most = check_rows(model, prompts, params)
    if isinstance(model, Decoder):
        return Desk(Engine(model, tokenizer, _just_enough(prompts, params, most, at_once))).pieces(prompts, params)
    rows = [_Row(model, tokenizer, *one) for one in zip(range(len(most)), prompts, params, most, strict=True)]
    return _loop(session_class(model)(model, most), rows)


def check_rows(model: Any, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[int]:
    """What may be made for each prompt at most.

    Raises:
        UserError: see `generate`.
    """
    for row, p in enumerate(params, 1):
        if p.num_beams > 1:
            raise UserError("beam search makes no pieces", where=f"prompt {row}", mend="set num_beams to 1")
        if not isinstance(model, Decoder) and (p.n > 1 or p.prompt_logprobs is not None):
            raise UserError("n and prompt_logprobs are for decoders", where=f"prompt {row}", mend="leave them out")
    return [most_tokens(model, *one) for one in zip(prompts, params, range(len(params)), strict=True)]


def _just_enough(
    prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], most: Sequence[int], at_once: int
) -> EngineConfig:
    """For one call: no more memory than these rows can use."""
    lengths = [len(prompt) + new for prompt, new in zip(prompts, most, strict=True)]
    texts = sum(p.n for p in params)
    return EngineConfig(max_model_len=max(lengths, default=1), max_sequences=max(1, min(at_once, texts)))


class Desk:
    """Lets several callers in one thread share an engine: each gets what it asked for, whoever makes the steps."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._numbers = count()
        self._boxes: dict[str, deque[Output]] = {}

    def pieces(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> Iterator[Piece]:
        """See `generate`; leaving the iterator aborts what has not ended.

        Raises:
            UserError: see `Engine.add`.
        """
        rows: dict[str, int] = {}
        try:
            for row, (prompt, p) in enumerate(zip(prompts, params, strict=True)):
                name = str(next(self._numbers))
                self.engine.add(name, prompt, _told(p))
                rows[name], self._boxes[name] = row, deque()
            open_choices = sum(p.n for p in params)
            while open_choices:
                output = self._next(rows)
                piece = _piece(rows[output.request_id], output)
                open_choices -= piece.finish_reason is not None
                yield piece
        finally:
            for name in rows:
                self.engine.abort(name)
                del self._boxes[name]

    def _next(self, names: Collection[str]) -> Output:
        """The next output for any of these requests."""
        while True:
            box = next((self._boxes[name] for name in names if self._boxes[name]), None)
            if box:
                return box.popleft()
            for output in self.engine.step():
                self._boxes[output.request_id].append(output)


def _piece(row: int, output: Output) -> Piece:
    assert output.logprobs is not None
    (logprob,) = output.logprobs
    return Piece(row, logprob, output.text, output.finish_reason, output.choice, output.prompt_logprobs)


class _Row:
    """One sequence of a model that is no decoder, while it grows."""

    def __init__(
        self, model: Any, tokenizer: Tokenizer, row: int, ids: Sequence[int], p: SamplingParams, max_tokens: int
    ) -> None:
        self.row, self.prompt = row, list(ids)
        continues = session_class(model).continues
        self.stopping = Stopping.of(p, tokenizer, self.prompt if continues else (), max_tokens)
        context = self.prompt if continues else [model.spec.start_token_id]
        self.chooser = Chooser(_told(p), tokenizer, model.spec.vocab_size, context)

    @property
    def finished(self) -> bool:
        return self.stopping.finish_reason is not None

    def take(self, logprob: TokenLogprob) -> Piece:
        self.chooser.take(logprob.token_id)
        text = self.stopping.add(logprob.token_id)
        if self.chooser.over:
            text += self.stopping.close("stop")
        return Piece(self.row, logprob, text, self.stopping.finish_reason)


def _told(p: SamplingParams) -> SamplingParams:
    """Pieces come with their log-probability."""
    return p if p.logprobs is not None else p.model_copy(update={"logprobs": 0})


def most_tokens(model: Any, prompt: Sequence[int], params: SamplingParams, row: int) -> int:
    """What may be made for a prompt at most; by default as much as the context holds.

    Raises:
        UserError: see `generate`; or nothing bounds the model's context, and `max_tokens` does not either.
    """
    where, context = f"prompt {row + 1}", model.spec.context_limit
    check_prompt(prompt, model.spec.vocab_size, where)
    if context is None:
        if params.max_tokens is None:
            raise UserError("this model would never end", where=where, mend="set max_tokens")
        return params.max_tokens
    continues = session_class(model).continues
    room = context - len(prompt) if continues else context
    if room < 1 or len(prompt) > context:
        raise UserError(f"{len(prompt)} tokens do not fit into a context of {context}", where=where, mend="shorten it")
    if params.max_tokens is not None and params.max_tokens > room:
        taken = f"{len(prompt)} tokens and {params.max_tokens} new ones" if continues else f"{params.max_tokens} tokens"
        raise UserError(
            f"{taken} do not fit into a context of {context}", where=where, mend=f"at most {room} new ones do"
        )
    return params.max_tokens or room


@torch.inference_mode()
def _loop(session: Session, rows: list[_Row]) -> Iterator[Piece]:
    logits = session.prefill([row.prompt for row in rows])
    while True:
        made = choose(logits, [row.chooser for row in rows])  # rows that have finished choose too, and nobody looks
        for row, logprob in zip(rows, made.logprobs, strict=True):
            if not row.finished:
                assert logprob is not None
                yield row.take(logprob)
        if all(row.finished for row in rows):
            return
        logits = session.step(made.ids)
