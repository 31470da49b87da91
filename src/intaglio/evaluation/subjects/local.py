"""A model in this process, on our engine.

Texts that begin alike are computed once: of all continuations of a context the first goes alone, the others find its
blocks in the prefix cache. The last token of a text is not computed: it is the only one the engine may choose, and is
told with the log-probability that the model itself gives it.

Legend: T tokens, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from intaglio.checkpoints.models import find_model
from intaglio.engine.llm import LLM, Completion
from intaglio.engine.logprobs import TokenLogprob, token_logprobs
from intaglio.engine.sampling_params import SamplingParams
from intaglio.engine.session import session_class
from intaglio.errors import UserError
from intaglio.evaluation.subjects.identity import files_hash, template_hash
from intaglio.evaluation.subjects.spans import Span, encode_pair, encoder_of, first_token
from intaglio.evaluation.subjects.subject import Answer, Likelihood, Prompt, Unanswered
from intaglio.models.decoder import Decoder
from intaglio.text.chat import render_chat
from intaglio.text.tokenizer import Tokenizer

__all__ = ["Complete", "LocalSubject", "local_subject"]

Complete = Callable[[Sequence[Sequence[int]], Sequence[SamplingParams]], list[Completion]]
"""Continues prompts of ids: `LLM.complete`."""


class LocalSubject:
    """See `Subject`.

    Args:
        model: of any kind of ours, on its device, in its dtype.
        tokenizer: the model's.
        complete: runs it.
        name: for people.
        facts: what its identity says besides the template.
        longest: tokens of a text and its answer together at most; None for what the model's context holds.

    Attributes:
        cut: texts so far that were too long and lost their beginning.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        complete: Complete,
        *,
        name: str = "model",
        facts: Mapping[str, Any] | None = None,
        longest: int | None = None,
    ) -> None:
        self.name, self.tokenizer, self.cut = name, tokenizer, 0
        self._model, self._complete, self._facts = model, complete, dict(facts or {})
        self._longest = longest or model.spec.context_limit
        self._encode = encoder_of(tokenizer)

    @property
    def context(self) -> int | None:
        """Tokens of a text and its answer together at most; None: any number."""
        return self._longest

    def identity(self) -> dict[str, Any]:
        """See `Subject`."""
        weight = next(self._model.parameters())
        kept = {"dtype": str(weight.dtype).removeprefix("torch."), "device": weight.device.type}
        return {"name": self.name, **self._facts, **kept, "template_hash": template_hash(self.tokenizer)}

    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[Likelihood | Unanswered]:
        """See `Subject`. What is too long for the context loses its beginning, as with lm-eval; `cut` counts that.

        Raises:
            UserError: the model answers and does not continue; or there is no context and no token in its place.
        """
        spans = [encode_pair(self._encode, self._first, *pair) for pair in pairs]
        return [_likelihood(told) for told in self._told(spans)]

    def log_probs(self, rows: Sequence[Sequence[int]]) -> list[list[float] | Unanswered]:
        """See `Subject`.

        Raises:
            UserError: see `likelihoods`.
        """
        spans = [Span(list(row), 1) for row in rows]
        told = iter(self._told([span for span in spans if len(span.ids) > 1]))
        return [[one.log_prob for one in next(told)] if len(span.ids) > 1 else [] for span in spans]

    def answers(self, prompts: Sequence[Prompt], params: SamplingParams) -> list[Answer | Unanswered]:
        """See `Subject`. A prompt that leaves no room in the context has no answer.

        Raises:
            UserError: a chat, and no template to render it with.
        """
        rows = [self._ids(prompt) for prompt in prompts]
        rooms = [self._room(len(row), params.max_tokens) for row in rows]
        fitting = [(row, room) for row, room in zip(rows, rooms, strict=True) if room]
        each = [params.model_copy(update={"max_tokens": room}) for _, room in fitting]
        made = iter(self._complete([row for row, _ in fitting], each) if fitting else [])
        return [
            _answer(next(made)) if room else Unanswered(f"its {len(row)} tokens leave no room in the context")
            for row, room in zip(rows, rooms, strict=True)
        ]

    @cached_property
    def _first(self) -> list[int]:
        return first_token(self.tokenizer)

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self._encode(prompt, True) or self._first
        return render_chat(self.tokenizer, prompt, add_generation_prompt=True).ids

    def _room(self, length: int, wanted: int | None) -> int | None:
        """Tokens that may be made behind so many; 0: none."""
        if self._longest is None:
            return wanted
        continues = session_class(self._model).continues
        room = max(self._longest - length, 0) if continues else self._longest * (length <= self._longest)
        return room if wanted is None else min(room, wanted)

    def _told(self, spans: Sequence[Span]) -> list[list[TokenLogprob]]:
        """What the model says of the tokens of each span."""
        if self._longest is not None:
            self.cut += sum(len(span.ids) > self._longest for span in spans)
            spans = [span.last(self._longest) for span in spans]
        if not session_class(self._model).continues:
            raise UserError("this model answers a source, and has no likelihood of a continuation", where=self.name)
        if not isinstance(self._model, Decoder):
            return [self._forward(span) for span in spans]
        return self._engine(spans)

    def _engine(self, spans: Sequence[Span]) -> list[list[TokenLogprob]]:
        """The first of each context, then all the others, which find it in the cache."""
        seen: set[tuple[int, ...]] = set()
        late = []
        for span in spans:
            context = tuple(span.ids[: span.start])
            late.append(context in seen)
            seen.add(context)
        told: dict[int, list[TokenLogprob]] = {}
        for wave in (False, True):
            places = [place for place, is_late in enumerate(late) if is_late is wave]
            chosen = [spans[place] for place in places]
            made = self._complete([span.ids[:-1] for span in chosen], [_asking(span) for span in chosen])
            told |= {place: _tokens(spans[place], one) for place, one in zip(places, made, strict=True)}
        return [told[place] for place in range(len(spans))]

    @torch.inference_mode()
    def _forward(self, span: Span) -> list[TokenLogprob]:
        """For models that the engine does not run: all at once."""
        device = next(self._model.parameters()).device
        logits = self._model(torch.tensor([span.ids[:-1]], device=device))[0, span.start - 1 :]  # (T, V)
        targets = span.ids[span.start :]
        return token_logprobs(logits, targets, [0] * len(targets))


def local_subject(llm: LLM, model: str | Path, adapter: Path | None = None, *, merged: bool = True) -> LocalSubject:
    """A loaded model as a subject.

    Args:
        llm: the model, an adapter included.
        model: what it was called when it was loaded.
        adapter: the directory of the adapter.
        merged: whether that was merged into the weights.
    """
    facts: dict[str, Any] = {"model": str(model), "model_hash": files_hash(find_model(model))}
    if adapter is not None:
        facts |= {"adapter": str(adapter), "adapter_hash": files_hash(adapter), "merged": merged}
    name = Path(model).name if adapter is None else f"{Path(model).name}+{adapter.name}"
    longest = llm.engine.max_model_len if isinstance(llm.model, Decoder) else None
    return LocalSubject(llm.model, llm.tokenizer, llm.complete, name=name, facts=facts, longest=longest)


def _asking(span: Span) -> SamplingParams:
    """All but the last token are the prompt, and nothing else may follow it."""
    before: dict[str, Any] = {}
    if span.start < len(span.ids) - 1:
        before = {"prompt_logprobs": 0, "prompt_logprobs_from": span.start}
    return SamplingParams(temperature=0, max_tokens=1, allowed_token_ids=(span.ids[-1],), logprobs=0, **before)


def _tokens(span: Span, completion: Completion) -> list[TokenLogprob]:
    told = [*(completion.prompt_logprobs or [])[span.start :], *(completion.logprobs or [])]
    return [one for one in told if one is not None]


def _likelihood(told: Sequence[TokenLogprob]) -> Likelihood:
    return Likelihood(sum(one.log_prob for one in told), len(told), all(one.rank == 1 for one in told))


def _answer(completion: Completion) -> Answer:
    ids = tuple(completion.token_ids)
    return Answer(completion.text, completion.finish_reason, completion.prompt_tokens, ids)
