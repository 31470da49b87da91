"""`/v1/chat/completions`: a conversation in, the assistant's next message out."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from intaglio.engine.interface import Output
from intaglio.serving.answers import answer
from intaglio.serving.documents import Documents, not_found, with_sources
from intaglio.serving.generation import Outputs, Tally, begin, gathered, speaking, stop_reason
from intaglio.serving.logprobs import chat_logprobs, prompt_logprobs
from intaglio.serving.prompts import Job, chat_ids, fitted, job, template_for
from intaglio.serving.protocol.chat import (
    AnsweredMessage,
    ChatBody,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChunkChoice,
    Delta,
    FunctionText,
    ToolCallAnswer,
)
from intaglio.serving.protocol.common import Answer
from intaglio.serving.service import Service
from intaglio.serving.tools import Call, NoCalls, ToolParser, forced_shape, has_special_tags, parser_of

__all__ = ["answer_chat"]


async def answer_chat(request: Request, service: Service, body: ChatBody) -> Response:
    """The answer, whole or as a stream; everything that can be refused is refused before it begins.

    Raises:
        ApiError, UserError, EngineUnavailable, ClientGone: see `errors`.
    """
    service = speaking(request, service, body.model)
    service.limits.check_choices(body.n)
    asked, parser, documents = await asyncio.to_thread(_prepare, service, body)
    if documents and documents.silent:
        outputs = not_found(request.state.request_id, body.n, len(asked.prompt_ids))
    else:
        outputs = await begin(request, service, [asked])
    chat = _Chat(service, body, asked, parser, documents, request.state.request_id)
    return await answer(request, chat, outputs, stream=body.stream)


def _prepare(service: Service, body: ChatBody) -> tuple[Job, Callable[[], ToolParser], Documents | None]:
    """What the engine is asked, what reads the text of each choice, and what the documents gave.

    Takes time, and holds nothing up.
    """
    tools = (body.tools or []) if body.may_call else []
    template = template_for(service, body, tools)
    body, documents = with_sources(service, body, template, tools)
    parser = parser_of(template) if tools else NoCalls
    ids = fitted(service, chat_ids(service, body, template, tools), keep=body.truncate_prompt_tokens, param="messages")
    more: dict[str, Any] = {"logprobs": (body.top_logprobs or 0) if body.logprobs else None}
    if body.must_call:
        more["structured"], parser = forced_shape(body.callable_tools)
    elif tools and has_special_tags(service.tokenizer):
        more["skip_special_tokens"] = False
    return job(service, body, ids, body.most_tokens, **more), parser, documents


@dataclass
class _Choice:
    """One answer as it grows."""

    parser: ToolParser
    most_calls: int | None
    begun: bool = False
    calls: int = 0
    text: str = ""

    def read(self, output: Output) -> tuple[str, list[Call]]:
        """Takes the next output; the text and the calls that are sure now."""
        pieces = self.parser.add(output.text) if output.text else []
        pieces += self.parser.finish() if output.finish_reason else []
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        room = None if self.most_calls is None else self.most_calls - self.calls
        calls = [piece for piece in pieces if isinstance(piece, Call)][:room]
        self.calls += len(calls)
        self.text += text
        return text, calls

    def finish_reason(self, output: Output) -> str | None:
        """Why the choice has ended: with calls, if it made any and was not cut off."""
        return "tool_calls" if self.calls and output.finish_reason == "stop" else output.finish_reason


class _Chat:
    """One request's answers, of `n` choices each.

    Args:
        service: answers it.
        body: the request.
        asked: what the engine continues.
        parser: makes what reads a choice's text.
        documents: what the answers stand on.
        request_id: tells the request from all others.
    """

    def __init__(
        self,
        service: Service,
        body: ChatBody,
        asked: Job,
        parser: Callable[[], ToolParser],
        documents: Documents | None,
        request_id: str,
    ) -> None:
        self._service, self._body, self._asked, self._documents = service, body, asked, documents
        most_calls = 1 if body.parallel_tool_calls is False else None
        self._choices = [_Choice(parser(), most_calls) for _ in range(body.n)]
        self._tally = Tally()
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{request_id}",
            "created": int(time.time()),
            "model": body.model or service.names[0],
            "system_fingerprint": None,
        }

    async def whole(self, outputs: Outputs) -> ChatCompletion:
        """All answers when the last has ended."""
        ended = [output for _, output in await gathered(outputs)]
        choices = [self._whole_choice(output) for output in ended]
        more = self._prompt_ids()
        if self._body.prompt_logprobs is not None:
            told = ended[0].prompt_logprobs or []
            more["prompt_logprobs"] = prompt_logprobs(self._service.tokenizer, told, self._body.prompt_logprobs)
        usage = self._tally.usage()
        return ChatCompletion(object="chat.completion", choices=choices, usage=usage, **self._head, **more)

    async def chunks(self, outputs: Outputs) -> AsyncGenerator[Answer, None]:
        """A chunk an output; the role comes with the first token of its choice, never before."""
        async for _, output in outputs:
            choice = self._choices[output.choice]
            more = {} if choice.begun else self._prompt_ids()
            told = self._chunk_choice(output, choice)
            choice.begun = True
            if told is not None:
                yield self._chunk([told], **self._tally.in_chunk(self._body), **more)
        if self._body.include_usage:
            yield self._chunk([], usage=self._tally.usage())

    def _chunk(self, choices: list[ChunkChoice], **more: Any) -> ChatChunk:
        return ChatChunk(object="chat.completion.chunk", choices=choices, **self._head, **more)

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": self._asked.prompt_ids} if self._body.return_token_ids else {}

    def _chunk_choice(self, output: Output, choice: _Choice) -> ChunkChoice | None:
        """What an output adds to its choice; None where all of it is held back."""
        place = choice.calls
        text, calls = choice.read(output)
        delta: dict[str, Any] = {} if choice.begun else {"role": "assistant"}
        if text or not (choice.begun or calls):
            delta["content"] = text
        if calls:
            delta["tool_calls"] = [_called(call, index=index) for index, call in enumerate(calls, place)]
        details = self._details(output, choice)
        if not (delta or output.finish_reason or output.logprobs or "token_ids" in details):
            return None
        return ChunkChoice(index=output.choice, delta=Delta(**delta), **details)

    def _whole_choice(self, output: Output) -> ChatChoice:
        choice = self._choices[output.choice]
        text, calls = choice.read(output)
        called = {"tool_calls": [_called(call) for call in calls]} if calls else {}
        message = AnsweredMessage(role="assistant", content=text if text or not calls else None, refusal=None, **called)
        return ChatChoice(index=output.choice, message=message, **self._details(output, choice))

    def _details(self, output: Output, choice: _Choice) -> dict[str, Any]:
        """What is told of an output beside its text."""
        self._tally.add(0, output)
        logprobs = chat_logprobs(self._service.tokenizer, output.logprobs or []) if self._body.logprobs else None
        details: dict[str, Any] = {"logprobs": logprobs, "finish_reason": choice.finish_reason(output)}
        if (reason := stop_reason(self._service, self._body, output)) is not None:
            details["stop_reason"] = reason
        if self._body.return_token_ids:
            details["token_ids"] = output.token_ids
        if self._documents and output.finish_reason:
            details["citations"] = self._documents.citations(choice.text)
        return details


def _called(call: Call, **place: int) -> ToolCallAnswer:
    function = FunctionText(name=call.name, arguments=call.arguments)
    return ToolCallAnswer(id=f"call_{uuid.uuid4().hex[:24]}", type="function", function=function, **place)
