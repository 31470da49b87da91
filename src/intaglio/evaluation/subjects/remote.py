"""A model behind any URL that speaks OpenAI's protocol.

Likelihoods come from `/v1/completions` with `echo`, `logprobs` and `max_tokens` 1, on token ids: the server's tokens
are counted here, or by its own `/tokenize` (which vLLM's servers and ours have). The entries of the prompt are the
first ones; what was made behind them is left alone, be it told or not.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Final, TypeVar

from intaglio.engine.sampling_params import SamplingParams
from intaglio.errors import UserError
from intaglio.evaluation.subjects.asking import Asker, RefusedError
from intaglio.evaluation.subjects.identity import template_hash
from intaglio.evaluation.subjects.spans import Encode, Span, encode_pair, encoder_of, first_token
from intaglio.evaluation.subjects.subject import Answer, Likelihood, Prompt, SubjectGoneError, Unanswered
from intaglio.text.tokenizer import Tokenizer

__all__ = ["RemoteSubject"]

T = TypeVar("T")
CONTEXTS: Final = 4096
"""Texts whose tokens are remembered, so that the server counts each context once."""


class RemoteSubject:
    """See `Subject`.

    Args:
        asker: of the server.
        model: the model's name; None for the first that the server names.
        tokenizer: the model's, in place of the server's `/tokenize`.
        concurrency: requests at a time.

    Raises:
        UserError: the server does not answer, or has no such model.
    """

    def __init__(
        self, asker: Asker, model: str | None = None, *, tokenizer: Tokenizer | None = None, concurrency: int = 8
    ) -> None:
        self._asker, self.tokenizer, self._concurrency = asker, tokenizer, concurrency
        self.cut = 0
        self._card = self._chosen(model)
        self.name: str = self._card["id"]
        self._encode = _remembering(encoder_of(tokenizer) if tokenizer else self._served_encode)

    @property
    def context(self) -> int | None:
        """Tokens of a text and its answer together at most, where the server says so."""
        told = self._card.get("max_model_len")
        return int(told) if told else None

    def identity(self) -> dict[str, Any]:
        """See `Subject`; a server does not tell the hash of its model."""
        facts = {"name": self.name, "url": self._asker.url, "model": self.name, "model_hash": None}
        told = {key: self._card[key] for key in ("owned_by", "root", "max_model_len") if self._card.get(key)}
        return {**facts, **told, "template_hash": template_hash(self.tokenizer)}

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood | Unanswered]:
        """See `Subject`.

        Raises:
            UserError: the server does not tell log-probabilities of a prompt, or how it tokenises.
        """
        return self._all(self._likelihood, pairs)

    def log_probs(self, rows: Sequence[Sequence[int]]) -> list[list[float] | Unanswered]:
        """See `Subject`.

        Raises:
            UserError: the server does not tell log-probabilities of a prompt.
        """
        return self._all(lambda row: self._told(Span(list(row), 1))[0] if len(row) > 1 else [], rows)

    def answers(self, prompts: Sequence[Prompt], params: SamplingParams) -> list[Answer | Unanswered]:
        """See `Subject`; a chat is rendered by the server."""
        return self._all(lambda prompt: self._answer(prompt, params), prompts)

    def _all(self, ask: Callable[[Any], T], what: Sequence[Any]) -> list[T | Unanswered]:
        """Several at a time, in order; once one finds nobody there, those that wait are not sent."""

        def asked(one: Any) -> T | Unanswered:
            try:
                return ask(one)
            except RefusedError as error:
                return Unanswered(str(error))

        with ThreadPoolExecutor(self._concurrency) as pool:
            running = [pool.submit(asked, one) for one in what]
            try:
                return [one.result() for one in running]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    # Likelihoods

    def _likelihood(self, pair: tuple[str, str]) -> Likelihood:
        span = encode_pair(self._encode, self._first(), *pair)
        most = self.context
        if most and len(span.ids) >= most:
            self.cut += 1
            span = span.last(most - 1)  # a token is made behind it
        values, greedy = self._told(span)
        return Likelihood(sum(values), len(values), greedy)

    def _told(self, span: Span) -> tuple[list[float], bool]:
        """ln p of each token of the span, and whether all were the likeliest."""
        ask = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
        told = self._asker.post("/v1/completions", {"model": self.name, "prompt": [span.ids], **ask})
        entries = _choice(told).get("logprobs")
        if not entries:
            mend = "take --scoring generate, or a server that tells them (vLLM's, ours)"
            raise UserError(
                "the server tells no log-probabilities of a prompt (echo)", where=self._asker.url, mend=mend
            )
        try:
            values = entries["token_logprobs"][span.start : len(span.ids)]
            top = (entries.get("top_logprobs") or [])[span.start : len(span.ids)]
            values = [float(value) for value in values]
            likeliest = [max(one.values(), default=0.0) for one in top]
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise RefusedError(f"its log-probabilities cannot be read ({error!r})") from error
        if len(values) != len(span.ids) - span.start:
            raise RefusedError(
                f"{len(entries['token_logprobs'])} log-probabilities of a prompt of {len(span.ids)} tokens"
            )
        return values, len(likeliest) == len(values) and all(
            value >= best for value, best in zip(values, likeliest, strict=True)
        )

    def _first(self) -> list[int]:
        return first_token(self.tokenizer) if self.tokenizer else self._encode("", True)[:1]

    def _served_encode(self, text: str, add_special_tokens: bool) -> list[int]:
        body = {"model": self.name, "prompt": text, "add_special_tokens": add_special_tokens}
        try:
            ids = self._asker.post("/tokenize", body)["tokens"]
            return [int(one) for one in ids]
        except (UserError, RefusedError, KeyError, TypeError, ValueError) as error:
            mend = "give --tokenizer DIR, the model's own"
            raise UserError("the server does not tell how it tokenises", where=self._asker.url, mend=mend) from error

    # Answers

    def _answer(self, prompt: Prompt, params: SamplingParams) -> Answer:
        chat = not isinstance(prompt, str)
        path, asked = ("/v1/chat/completions", "messages") if chat else ("/v1/completions", "prompt")
        what = [dict(message) for message in prompt] if not isinstance(prompt, str) else prompt
        told = self._asker.post(path, {"model": self.name, asked: what, **_sampling(params)})
        choice = _choice(told)
        reason = str(choice.get("finish_reason") or "")
        text = (choice.get("message") or {}).get("content") if chat else choice.get("text")
        if text is None and reason == "length":  # all of it was thought aloud
            text = ""
        if not isinstance(text, str):
            raise RefusedError("there is no text in the answer")
        usage = told.get("usage") or {}
        return Answer(text, reason, int(usage.get("prompt_tokens") or 0))

    def _chosen(self, model: str | None) -> Mapping[str, Any]:
        """What the server says of the model."""
        try:
            cards = self._asker.get("/v1/models", tries=1).get("data") or []
        except (SubjectGoneError, RefusedError) as error:
            raise UserError(str(error), where=self._asker.url) from error
        for card in cards:
            if model in (None, card.get("id")):
                return card
        known = ", ".join(str(card.get("id")) for card in cards)
        raise UserError(
            f"the server has no model {model or ''}".rstrip(), where=self._asker.url, mend=f"it has: {known}"
        )


def _remembering(encode: Encode) -> Encode:
    return lru_cache(CONTEXTS)(encode)


def _choice(told: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = told.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise RefusedError("there is no choice in the answer")
    return choices[0]


def _sampling(params: SamplingParams) -> dict[str, Any]:
    """What OpenAI's protocol knows of it."""
    stop, top_p = list(params.stop) or None, params.top_p if params.top_p < 1 else None
    kept = {"temperature": params.temperature, "max_tokens": params.max_tokens, "seed": params.seed}
    return {name: value for name, value in {**kept, "stop": stop, "top_p": top_p}.items() if value is not None}
