"""Conversations that are answered from documents: sources go into the question, citations come with the answer."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace

from intaglio.engine.interface import Output
from intaglio.retrieval.answer import Grounded, Grounding
from intaglio.retrieval.citations import Citation
from intaglio.retrieval.prompt import NOT_FOUND
from intaglio.serving.generation import Outputs, Placed
from intaglio.serving.prompts import chat_ids
from intaglio.serving.protocol.chat import ChatBody, MessageBody, ToolBody
from intaglio.serving.service import Service
from intaglio.text.chat import ChatTemplate
from intaglio.text.messages import Message

__all__ = ["Documents", "not_found", "with_sources"]


@dataclass(frozen=True)
class Documents:
    """What one conversation found.

    Attributes:
        grounding: found it.
        grounded: what it is.
    """

    grounding: Grounding
    grounded: Grounded

    @property
    def silent(self) -> bool:
        """Whether the documents hold no answer."""
        return self.grounded.prompt is None

    def citations(self, text: str) -> list[Citation]:
        """What an answer stands on."""
        return self.grounding.cite(text, self.grounded)


def with_sources(
    service: Service, body: ChatBody, template: ChatTemplate, tools: Sequence[ToolBody]
) -> tuple[ChatBody, Documents | None]:
    """The request with sources in its question, and what was found; as it came where there are no documents.

    A conversation that does not end with the user's words (a tool has answered, say) goes on as it came, too.

    Raises:
        UserError, ApiError: the question has no room for a source, or no template renders it.
    """
    if service.grounding is None or body.messages[-1].role != "user":
        return body, None

    def asked(messages: Sequence[Message]) -> ChatBody:
        question = MessageBody(role="user", content=messages[-1]["content"])
        return body.model_copy(update={"messages": [*body.messages[:-1], question]})

    room = service.engine.max_model_len - (body.most_tokens or 1)
    grounding = replace(service.grounding, budget=min(service.grounding.budget, room))
    messages = [{"role": message.role, "content": message.text} for message in body.messages]
    grounded = grounding.ground(messages, lambda said: len(chat_ids(service, asked(said), template, tools)))
    return asked(grounded.prompt.messages) if grounded.prompt else body, Documents(grounding, grounded)


def not_found(request_id: str, choices: int, prompt_tokens: int) -> Outputs:
    """The same words for each choice, said without a model."""

    async def nothing() -> AsyncGenerator[Placed, None]:
        for choice in range(1, choices):
            yield 0, said(choice)

    def said(choice: int) -> Output:
        return Output(request_id, choice, [], NOT_FOUND, finish_reason="stop", prompt_tokens=prompt_tokens)

    return Outputs((0, said(0)), nothing())
