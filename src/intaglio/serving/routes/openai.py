"""The routes that OpenAI's clients know."""

from starlette.requests import Request
from starlette.responses import Response

from intaglio.serving.answers import json_answer
from intaglio.serving.chat import answer_chat
from intaglio.serving.completions import answer_completion
from intaglio.serving.embeddings import answer_embeddings
from intaglio.serving.protocol.chat import ChatBody, ChatCompletion
from intaglio.serving.protocol.completions import Completion, CompletionBody
from intaglio.serving.protocol.embeddings import EmbeddingBody, Embeddings
from intaglio.serving.protocol.models import ModelCard, ModelList
from intaglio.serving.routes.base import Served, model_card, router

__all__ = ["openai_routes"]

openai_routes = router()


@openai_routes.post("/v1/chat/completions", response_model=ChatCompletion)
async def chat_completions(request: Request, service: Served, body: ChatBody) -> Response:
    """Answers a conversation."""
    return await answer_chat(request, service, body)


@openai_routes.post("/v1/completions", response_model=Completion)
async def completions(request: Request, service: Served, body: CompletionBody) -> Response:
    """Continues prompts."""
    return await answer_completion(request, service, body)


@openai_routes.post("/v1/embeddings", response_model=Embeddings)
async def embeddings(request: Request, service: Served, body: EmbeddingBody) -> Response:
    """Turns texts into vectors."""
    return await answer_embeddings(request, service, body)


@openai_routes.get("/v1/models", response_model=ModelList)
async def models(service: Served) -> Response:
    """Lists what is served, the model under each of its names, then its adapters."""
    service.check_ready()
    names = [*service.names, *service.adapters]
    return json_answer(ModelList(object="list", data=[model_card(service, name) for name in names]))


@openai_routes.get("/v1/models/{name:path}", response_model=ModelCard)
async def model(service: Served, name: str) -> Response:
    """Describes one model or adapter."""
    service.check_ready()
    service.of(name)
    return json_answer(model_card(service, name))
