"""`/v1/completions`: prompts in, their continuations out."""

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from intaglio.engine.interface import Output
from intaglio.serving.answers import answer
from intaglio.serving.generation import Outputs, Tally, begin, gathered, speaking, stop_reason
from intaglio.serving.logprobs import LogprobWriter, prompt_logprobs, token_texts
from intaglio.serving.prompts import Job, fitted, job, text_ids
from intaglio.serving.protocol.common import Answer
from intaglio.serving.protocol.completions import (
    Completion,
    CompletionBody,
    CompletionChoice,
    CompletionLogprobs,
)
from intaglio.serving.service import Service

if TYPE_CHECKING:
    from intaglio.engine.logprobs import TokenLogprob

__all__ = ["answer_completion"]


async def answer_completion(request: Request, service: Service, body: CompletionBody) -> Response:
    """The continuations, whole or as a stream; everything that can be refused is refused before they begin.

    Raises:
        ApiError, UserError, EngineUnavailable, ClientGone: see `errors`.
    """
    service = speaking(request, service, body.model)
    service.limits.check_choices(body.n)
    service.limits.check_prompts(len(body.prompts), "prompt")
    asked = await asyncio.to_thread(_prepare, service, body)
    outputs = await begin(request, service, [prompt.job for prompt in asked])
    completion = _Completion(service, body, asked, request.state.request_id)
    return await answer(request, completion, outputs, stream=body.stream)


@dataclass(frozen=True)
class _Prompt:
    """One prompt.

    Attributes:
        job: what the engine is asked.
        echo: the prompt as text, where it is echoed.
        texts: the same token by token, where their log-probabilities are told.
    """

    job: Job
    echo: str = ""
    texts: tuple[str, ...] = ()


def _prepare(service: Service, body: CompletionBody) -> list[_Prompt]:
    """What the engine is asked. Takes time, and holds nothing up."""
    prompts = body.prompts
    encoded = text_ids(service, prompts, body.add_special_tokens)
    return [_prompt(service, body, given, ids) for given, ids in zip(prompts, encoded, strict=True)]


def _prompt(service: Service, body: CompletionBody, given: str | list[int], ids: list[int]) -> _Prompt:
    kept = fitted(service, ids, keep=body.truncate_prompt_tokens, param="prompt")
    more: dict[str, Any] = {"logprobs": body.logprobs}
    if body.echo and body.logprobs is not None:
        more["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
    # the engine makes a token at least; whoever wants none is not shown it
    asked = job(service, body, kept, body.max_tokens or 1, **more)
    if not body.echo:
        return _Prompt(asked)
    tokenizer = service.tokenizer
    whole = isinstance(given, str) and len(kept) == len(ids)
    added_bos = whole and body.add_special_tokens and tokenizer.adds_bos
    texts = tuple(token_texts(tokenizer, kept, added_bos=added_bos))
    return _Prompt(asked, given if isinstance(given, str) and whole else "".join(texts), texts)


class _Completion:
    """One request's continuations: of prompt i, `n` choices with the indices from i * n on.

    Args:
        service: answers it.
        body: the request.
        prompts: what the engine continues.
        request_id: tells the request from all others.
    """

    def __init__(self, service: Service, body: CompletionBody, prompts: list[_Prompt], request_id: str) -> None:
        self._service, self._body, self._prompts = service, body, prompts
        self._writers: dict[int, LogprobWriter] = {}  # by index, of choices that have begun
        self._told: dict[int, list[TokenLogprob | None]] = {}  # by place, of prompts
        self._tally = Tally()
        self._head: dict[str, Any] = {
            "id": f"cmpl-{request_id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model or service.names[0],
            "system_fingerprint": None,
        }

    async def whole(self, outputs: Outputs) -> Completion:
        """All continuations when the last has ended."""
        choices = [self._change(place, output) for place, output in await gathered(outputs)]
        return Completion(choices=choices, usage=self._tally.usage(), **self._head)

    async def chunks(self, outputs: Outputs) -> AsyncGenerator[Answer, None]:
        """A chunk an output."""
        async for place, output in outputs:
            choice = self._change(place, output)
            yield Completion(choices=[choice], **self._head, **self._tally.in_chunk(self._body))
        if self._body.include_usage:
            yield Completion(choices=[], usage=self._tally.usage(), **self._head)

    def _change(self, place: int, output: Output) -> CompletionChoice:
        """What an output adds to its choice; the first begins with the prompt where that is echoed."""
        if self._body.max_tokens == 0:
            output = replace(output, token_ids=[], text="", logprobs=output.logprobs and [])
        self._tally.add(place, output)
        if output.prompt_logprobs is not None:
            self._told[place] = output.prompt_logprobs
        index, prompt = place * self._body.n + output.choice, self._prompts[place]
        begins = index not in self._writers
        if begins:
            self._writers[index] = self._writer(prompt)
        return CompletionChoice(
            index=index,
            text=(prompt.echo if begins else "") + output.text,
            logprobs=self._logprobs(self._writers[index], place, output, begins),
            finish_reason=output.finish_reason,
            **self._more(place, output, begins),
        )

    def _writer(self, prompt: _Prompt) -> LogprobWriter:
        return LogprobWriter(self._service.tokenizer, prompt.job.prompt_ids, self._body.logprobs or 0)

    def _logprobs(self, writer: LogprobWriter, place: int, output: Output, begins: bool) -> CompletionLogprobs | None:
        if self._body.logprobs is None:
            return None
        texts = self._prompts[place].texts if begins else ()
        told = self._told[place] if texts else []
        return writer.entries(texts, told, output.logprobs or [])

    def _more(self, place: int, output: Output, begins: bool) -> dict[str, Any]:
        """What is told of a choice only where it was asked for, or where there is any."""
        more: dict[str, Any] = {}
        if (reason := stop_reason(self._service, self._body, output)) is not None:
            more["stop_reason"] = reason
        if self._body.prompt_logprobs is not None:
            more["prompt_logprobs"] = prompt_logprobs(
                self._service.tokenizer, self._told[place], self._body.prompt_logprobs
            )
        if self._body.return_token_ids:
            more["token_ids"] = output.token_ids
            more |= {"prompt_token_ids": self._prompts[place].job.prompt_ids} if begins else {}
        return more
